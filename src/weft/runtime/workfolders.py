"""Folders that supervisors make for their tasks."""

from __future__ import annotations

import os
import shutil

from weft.runtime.tasklog import unlink


def make_folders(paths: list[str]) -> None:
    for path in paths:
        try:
            os.mkdir(path)
        except FileExistsError:
            continue


class TemporaryFolders:
    """A TMPDIR for each task, empty when it starts and emptied when it ends.

    A folder is kept for the next task: making and removing one costs as much as starting a process. The
    owner's id is in the name, so that a server can sweep those of a supervisor that was killed.
    """

    def __init__(self, owner: str):
        self._owner = owner
        self._free: list[str] = []
        self._made = 0

    def take(self, root: str) -> str:
        if self._free:
            return self._free.pop()
        self._made += 1
        path = f"{root}/{self._owner}-{self._made}"
        make_folders([path])
        return path

    def give_back(self, path: str) -> None:
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                unlink(entry.path)
        self._free.append(path)

    def remove(self) -> None:
        for path in self._free:
            shutil.rmtree(path, ignore_errors=True)
        self._free.clear()
