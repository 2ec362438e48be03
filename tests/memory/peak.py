"""Convert one file in this process and print what was predicted, what was measured, and what was read.

Run as a module with the source, the output and the memory limit in bytes.
"""

import json
import re
import sys
from pathlib import Path

from mlarray_convert.discovery import discover
from mlarray_convert.request import make_request
from mlarray_convert.run import Job, run_case


def main() -> None:
    source, output, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
    results = {}
    before = read_bytes()
    for dry_run in (True, False):
        request = make_request(source, output, verify=sys.argv[4], dry_run=dry_run)
        outcome = run_case(Job(discover(request).cases[0], request, limit, 1), lambda share: None)
        results["reason"] = outcome.reason
        if outcome.plan is not None:
            results |= {"predicted": outcome.plan.peak_bytes, "spool": outcome.plan.spool}
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    results |= {"measured": int(peak.group(1)) * 1024, "status": outcome.status.value, "read": read_bytes() - before}
    print(json.dumps(results))


def read_bytes() -> int:
    """Return the bytes this process asked the system to read, from the cache or not."""
    text = Path("/proc/self/io").read_text(encoding="ascii")
    found = re.search(r"rchar: (\d+)", text)
    assert found is not None
    return int(found.group(1))


if __name__ == "__main__":
    main()
