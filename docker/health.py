"""Is the Flower service at this address well? ``health.py URL``; exits with 1 if not."""

import ssl
import sys
import urllib.request
from pathlib import Path

AUTHORITY = Path("/run/secrets/authority")

if __name__ == "__main__":
    url = sys.argv[1]
    trusted = ssl.create_default_context(cafile=AUTHORITY) if url.startswith("https:") else None
    try:
        urllib.request.urlopen(f"{url}/health", timeout=5, context=trusted).close()  # noqa: S310 - our own address
    except OSError as cause:
        sys.exit(f"{url}: {cause}")
