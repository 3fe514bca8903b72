"""``python -m dla_perception VERB``."""

import sys

from dla_perception.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
