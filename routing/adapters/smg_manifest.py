"""smg that follows a file (`--discovery-provider file`): the file is written, smg is read.

Measured with 1.13.0: the file is read again each `--discovery-check-interval-secs`; one that is not
valid is ignored and the last good one stays; a role that changes there is shown within a second of
that; an empty list is obeyed. What is taken out drains as with a DELETE.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from routing.adapters import applied, base, gateway, manifest, places, smg
from routing.adapters.surface import Actual, Role


class Settings(gateway.Settings, frozen=True, kw_only=True):
    """`manifest`: the file's name in the folder of routers' files. `check_interval_s`: how often
    the router looks."""

    manifest: places.Name
    check_interval_s: Annotated[float, msgspec.Meta(gt=0.0, le=300.0)] = 30.0


class SmgManifest(base.Changing[Settings]):
    kind = "smg-manifest"
    _can = smg.CAN

    def read(self) -> Actual:
        """The router, and where the file says something else."""
        actual = smg.read(self.settings)
        entries = manifest.read(self._path(), router=self.url)
        wanted = {url: entry.worker_type for url, entry in entries.items()}
        shown = {url: w.role for url, w in actual.workers.items() if w.status != "draining"}
        findings = tuple(
            f"{self.url}: {url} is {wanted.get(url) or 'not listed'} in {self.settings.manifest}, "
            f"and {shown.get(url) or 'not listed'} in the router"
            for url in sorted(wanted.keys() | shown.keys())
            if wanted.get(url) != shown.get(url)
        )
        return Actual(version=actual.version, workers=actual.workers, findings=findings)

    def _is_told(self, url: str, role: Role | None) -> bool:
        """What else its entry says may be other than the settings: it is written all the same."""
        return False

    def _take_out(self, actual: Actual, url: str) -> Actual:
        self._change(url, None)
        return self._until_out(url)

    def _put_in(self, actual: Actual, url: str, role: Role) -> None:
        listed = actual.workers.get(url)
        if listed is None:
            gateway.require_answer(url, router=self.url)
        elif listed.status == "draining":
            # Put in again meanwhile it would be shown, and gone when the removal is over.
            self._until_gone(url, what="gone after its removal", within_s=smg.LEAVES_WITHIN_S)
        elif listed.role != role:
            applied.not_last(actual, url, router=self.url)
        self._change(url, role)

    def _change(self, url: str, role: Role | None) -> None:
        entry = None if role is None else self.settings.entry(url, role)
        manifest.change(self._path(), url, entry, router=self.url)

    @property
    def _within_s(self) -> float:
        return self.settings.check_interval_s + applied.APPLIED_WITHIN_S

    def _path(self) -> Path:
        return places.path_of(self.settings.manifest, router=self.url)
