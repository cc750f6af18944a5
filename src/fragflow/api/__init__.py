"""The interface for authors of algorithms and environments; it knows nothing of distribution."""

from fragflow.api.algorithm import Algorithm as Algorithm
from fragflow.api.algorithm import Clock as Clock
from fragflow.api.algorithm import Metrics as Metrics
from fragflow.api.algorithm import check_settings as check_settings
from fragflow.api.component import component as component
from fragflow.api.environment import Environment as Environment
from fragflow.api.environment import Step as Step
from fragflow.api.environment import Timestep as Timestep
from fragflow.api.environment_batch import Environments as Environments
from fragflow.api.environment_batch import EnvState as EnvState
from fragflow.api.host import HostBatch as HostBatch
from fragflow.api.host import HostEnvironment as HostEnvironment
from fragflow.api.host import HostStep as HostStep
from fragflow.api.kernel import kernel as kernel
from fragflow.api.reduce import all_max as all_max
from fragflow.api.reduce import all_mean as all_mean
from fragflow.api.reduce import all_sum as all_sum
from fragflow.api.spaces import Box as Box
from fragflow.api.spaces import Discrete as Discrete
from fragflow.api.spaces import MultiDiscrete as MultiDiscrete
from fragflow.api.spaces import Space as Space
