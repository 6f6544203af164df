from pathlib import Path

from crsbench.config import load_config
from crsbench.doctor import examine, formatted, missing
from crsbench.errors import UserError, told_in_one_sentence

with told_in_one_sentence(snakemake.log[0]):
    config = load_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    report = examine(config)
    print(f"\n{formatted(report)}\n", flush=True)
    absent = ", ".join(missing(report))
    if absent:
        raise UserError(f"`all` can't end without what is red above: {absent}.")
