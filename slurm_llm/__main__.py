"""`python -m slurm_llm`."""

from slurm_llm.cli import main

if __name__ == "__main__":
    main()
