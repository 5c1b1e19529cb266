"""``python -m django_singlejob.adopt FILE``: needs no project."""

import sys

from django_singlejob.adopt.arguments import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
