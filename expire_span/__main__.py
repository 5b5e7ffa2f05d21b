"""`python -m expire_span`, the same as the command `expire-span`."""

from expire_span.cli import main

if __name__ == "__main__":
    main()
