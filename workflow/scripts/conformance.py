from pathlib import Path

from crsbench.config import load_config
from crsbench.conformance import conformance
from crsbench.doctor import formatted, missing
from crsbench.errors import UserError, told_in_one_sentence

with told_in_one_sentence(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    report = conformance(config)
    print(f"\n{formatted(report)}\n", flush=True)
    failed = ", ".join(missing(report))
    if failed:
        raise UserError(f"What is red above does not conform: {failed}.")
