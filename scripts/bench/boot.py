"""What the tests with machines measure while they test: boot.py OUT-DIRECTORY.

Runs those tests of `make test-vm` that print figures, and keeps the figures.
"""

import json
import os
import pathlib
import subprocess
import sys

TESTS = ["boot::", "api::every_answer", "disks::sixty_disks", "deploy::deployed_machine_boots_by_bios"]
MARK = "MEASURED: "

command = ["cargo", "test", "--quiet", "-p", "ferric-tests", "--test", "vm", "--", "--test-threads=1", *TESTS]
done = subprocess.run(command, capture_output=True, text=True, check=False)
lines = [line.split(MARK, 1)[1] for line in done.stderr.splitlines() if MARK in line]
if done.returncode != 0 or not lines:
    sys.exit(done.stdout + done.stderr)
print("machines under QEMU, one at a time")
for line in lines:
    print(f"  {line}")
report = {"measurement": "boot", "load": os.getloadavg(), "figures": lines}
(pathlib.Path(sys.argv[1]) / "boot.json").write_text(json.dumps(report, indent=2) + "\n")
