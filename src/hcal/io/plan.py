"""Which arrays of a file are wanted for what, decided when the file tells what it holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from hcal.io.columns import BARE, CLASSES, SCORES, Columns, kind_by_name, listed, named_classes, role_key
from hcal.io.limits import one_line
from hcal.inputs import INPUT_KINDS

Part = Literal["cal", "test"]


class UnknownKindError(ValueError):
    """A file does not say whether it holds logits, probs or log_probs, or holds several of them."""


class ReadingPlan:
    """What to read of one file, by the caller's words and the names that the file holds."""

    def __init__(
        self, path: Path, part: Part, kind: str | None, columns: Columns, *, own_labels: bool
    ) -> None:
        self.path, self.part, self.kind, self.columns = path, part, kind, columns
        self.own_labels = own_labels
        self.names: dict[str, str] = {}
        self.suffix = ""
        self.heads: Sequence[str] = ()

    def choose(self, names: Collection[str]) -> list[str]:
        """Decide, and return the names to read."""
        self.suffix, scores = self._scores(names)
        self.heads = names[scores] if isinstance(names, Mapping) else ()
        self.names = {"scores": scores}
        self.kind = self._kind(scores)
        for role, name in self.columns.wanted().items():
            if role != "label" or self.own_labels:
                self.names[role] = self._named(names, role_key(role), name)
        y = f"y{self.suffix}"
        if self.own_labels and "label" not in self.names and y in names:
            self.names["label"] = y
        if CLASSES in names and not isinstance(names, Mapping):
            self.names[CLASSES] = CLASSES
        return list(dict.fromkeys(self.names.values()))

    def classes(self, listed_in_file: NDArray[Any] | None) -> Sequence[Any] | None:
        """Return the names of the classes that the file gives, in an array or by its columns."""
        if listed_in_file is not None:
            return [str(name) for name in listed_in_file.ravel().tolist()]
        return named_classes(self.heads, self.columns.scores)

    def _scores(self, names: Collection[str]) -> tuple[str, str]:
        if self.columns.scores is None:
            return _find(names, self.path, self.part, self.kind)
        if SCORES in names:
            return "", SCORES
        name = self._named(names, SCORES, self.columns.scores)
        return name.removeprefix(self.columns.scores), name

    def _named(self, names: Collection[str], key: str, name: str) -> str:
        """Return the key of a table's column, or the array of that name, of this part if there is one."""
        for found in (key, f"{name}_{self.part}", name):
            if found in names:
                return found
        raise ValueError(f"it has no array {one_line(repr(name), 60)}; it holds: {listed(names)}")

    def _kind(self, scores: str) -> str:
        said = scores.removesuffix(self.suffix)
        if self.kind is None and said not in INPUT_KINDS:
            first = self.heads[0] if self.heads else scores
            said = kind_by_name(first) or kind_by_name(self.columns.scores or "") or ""
        found = self.kind or said
        if not found:
            raise UnknownKindError(f"{self.path.name} does not say what its numbers are")
        return found


def _find(names: Collection[str], path: Path, part: Part, kind: str | None) -> tuple[str, str]:
    """Return the suffix of the part and the name of the array to use."""
    wanted = (kind,) if kind else INPUT_KINDS
    for suffix in (f"_{part}", ""):
        found = [k + suffix for k in wanted if k + suffix in names]
        if len(found) > 1:
            raise UnknownKindError(f"{path.name} holds {' and '.join(found)}: choose one")
        if found:
            return suffix, found[0]
    if BARE in names:
        if kind is None:
            raise UnknownKindError(f"{path.name} does not say what its numbers are")
        return "", BARE
    held = one_line(", ".join(sorted(names)), 120) or "nothing"
    what = kind or "logits, probs or log_probs"
    role = "calibration" if part == "cal" else "test"
    raise ValueError(
        f"{path.name} has no {what} (nor a {role} part of that name with _{part}); it holds: {held}"
    )
