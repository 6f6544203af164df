# What every rule file shares: the configuration, the grid, the names of the files.
import os
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

HOME = Path(workflow.basedir)
# The library beside this workflow is the one that runs, here and in every job's process.
sys.path.insert(0, str(HOME / "src"))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HOME / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

from crsbench.config import load_config
from crsbench.errors import UserError
from crsbench.grid import Grid, Layout
from crsbench.sources import encoder_files, image_root
from crsbench.threads import use_one_thread

use_one_thread()  # this process works off the runs

try:
    CONFIG = load_config(config, HOME)
except UserError as error:
    raise WorkflowError(error)

GRID = Grid(CONFIG)
LAYOUT = Layout(CONFIG.results)


def any_of(names):
    """A wildcard constraint that matches exactly these names (nothing, if there are none)."""
    return "|".join(map(re.escape, names)) or "(?!)"


wildcard_constraints:
    encoder=any_of(CONFIG.encoders),
    dataset=any_of([*CONFIG.datasets, *CONFIG.targets]),
    target=any_of(CONFIG.targets),
    condition=any_of(["clean", *GRID.degraded, *CONFIG.targets]),
    seed=any_of(map(str, CONFIG.seeds)),
    percent=any_of(f"{percent:03d}" for percent in CONFIG.fractions),
