from .config import TrainingConfig as TrainingConfig
from .data import TrainingData as TrainingData
from .evaluation_environment import (
    EvaluationEnvironment as EvaluationEnvironment,
    resolve_environment as resolve_environment,
    restore_environment as restore_environment,
)
from .experiments import (
    Experiment as Experiment,
    load_experiment as load_experiment,
    run_plan as run_plan,
    train_seeds as train_seeds,
)
from .off_policy_evaluation import (
    OffPolicySettings as OffPolicySettings,
    evaluate_offline as evaluate_offline,
    rank_policies as rank_policies,
)
from .option_fields import TrainingOption as TrainingOption
from .plans import PlannedRun as PlannedRun, plan_seeds as plan_seeds
from .policy_estimates import PolicyEstimate as PolicyEstimate, draw_estimates as draw_estimates
from .presets import preset_names as preset_names
from .progress import Progress as Progress
from .reports import (
    Report as Report,
    report_runs as report_runs,
    report_source as report_source,
)
from .sources import open_data as open_data
from .training import Training as Training, train as train
