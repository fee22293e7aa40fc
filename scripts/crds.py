"""Write deploy/chart/crds from the models: `python scripts/crds.py`."""

from __future__ import annotations

from pathlib import Path

import yaml

from weft.backends.kubernetes.crds import KINDS, Kind, crd

TARGET = Path(__file__).resolve().parent.parent / "deploy" / "chart" / "crds"
HEAD = "# Made from the models by `python scripts/crds.py`; change those.\n"


def files() -> dict[str, str]:
    """What is in the folder, by name."""
    return {f"{kind.full_name}.yaml": HEAD + _text(kind) for kind in KINDS}


def _text(kind: Kind) -> str:
    return yaml.dump(crd(kind), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """Writes a part twice that is there twice: an alias would save nothing and confuse."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (TARGET / name).write_text(text)
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
