"""`python -m gpudiag`: the same command line as the console script."""

from gpudiag.cli.main import run

if __name__ == "__main__":
    run()
