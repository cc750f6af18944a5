"""Write a training loop once; a distribution policy cuts it into fragments at deployment."""

from fragflow.api import Algorithm as Algorithm
from fragflow.api import Box as Box
from fragflow.api import Clock as Clock
from fragflow.api import Discrete as Discrete
from fragflow.api import Environment as Environment
from fragflow.api import Environments as Environments
from fragflow.api import Step as Step
from fragflow.api import Timestep as Timestep
from fragflow.api import all_max as all_max
from fragflow.api import all_mean as all_mean
from fragflow.api import all_sum as all_sum
from fragflow.api import component as component
