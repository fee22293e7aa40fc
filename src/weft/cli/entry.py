"""Where `weft` begins. `weft --version` answers before anything is imported that it does not need."""

import sys


def main() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        from weft.version import __version__

        print(f"weft {__version__}")
        return
    from weft.cli.app import dispatch

    sys.exit(dispatch(sys.argv[1:]))


if __name__ == "__main__":
    main()
