"""`python -m model.synthetic`."""

from model.synthetic.command import main

if __name__ == "__main__":
    main()
