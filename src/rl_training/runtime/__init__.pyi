# Generated from rl_training/exports.py by docs/generate.py; change the table there.

from rl_training.runtime.collector import Collector as Collector
from rl_training.runtime.evaluator import Evaluator as Evaluator
