"""Brings the page's browser modules up to date: ``python docs/_modules.py``. Needs npm.

Copies each published module with its licence, and changes two things: imports by name become imports by path, since a
page without inline code can have no import map, and references to source maps go."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path

VENDOR = Path(__file__).parent.parent / "src/routewright/ui/static/vendor"
MODULES = {
    "preact": {"dist/preact.mjs": "preact.mjs", "hooks/dist/hooks.mjs": "hooks.mjs"},
    "htm": {"dist/htm.module.js": "htm.js"},
    "uplot": {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"},
}
"""Published files by package, and their names here."""


def main() -> None:
    """Fetch the newest versions."""
    versions = {}
    for package, paths in MODULES.items():
        with tempfile.TemporaryDirectory() as folder:
            command = ["npm", "pack", "--silent", package]
            name = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
            with tarfile.open(Path(folder, name)) as archive:
                archive.extractall(folder, filter="data")
            root = Path(folder, "package")
            for source, target in paths.items():
                text = Path(root, source).read_text()
                text = re.sub(r'from"preact"', 'from"./preact.mjs"', text)
                Path(VENDOR, target).write_text(re.sub(r"\n//# sourceMappingURL=.*", "", text))
            Path(VENDOR, f"LICENSE.{package}").write_text(Path(root, "LICENSE").read_text())
            versions[package] = json.loads(Path(root, "package.json").read_text())["version"]
    hashes = {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(VENDOR.glob("*.*s*"))}
    manifest = {"versions": versions, "sha256": {name: hashes[name] for name in hashes if name != "versions.json"}}
    Path(VENDOR, "versions.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()
