"""The command line as a module, so that tests can start it as a process."""

from mlarray_convert.cli import main

if __name__ == "__main__":
    main()
