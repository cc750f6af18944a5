"""Pure reinforcement learning maths: no state, no environments."""

from fragflow.ops.distributions import Categorical as Categorical
from fragflow.ops.distributions import Distribution as Distribution
from fragflow.ops.distributions import MultiCategorical as MultiCategorical
from fragflow.ops.distributions import Normal as Normal
from fragflow.ops.losses import clipped_surrogate as clipped_surrogate
from fragflow.ops.losses import clipped_value_loss as clipped_value_loss
from fragflow.ops.losses import value_loss as value_loss
from fragflow.ops.minibatches import map_blocks as map_blocks
from fragflow.ops.minibatches import time_minibatches as time_minibatches
from fragflow.ops.networks import ActorCriticNetwork as ActorCriticNetwork
from fragflow.ops.networks import MLPActorCritic as MLPActorCritic
from fragflow.ops.normaliser import Statistics as Statistics
from fragflow.ops.normaliser import include as include
from fragflow.ops.normaliser import normalise as normalise
from fragflow.ops.recurrent import GRUActorCritic as GRUActorCritic
from fragflow.ops.recurrent import forget as forget
from fragflow.ops.returns import discounted_sums as discounted_sums
from fragflow.ops.returns import gae as gae
from fragflow.ops.statistics import standardise as standardise
from fragflow.ops.vtrace import VTrace as VTrace
from fragflow.ops.vtrace import vtrace as vtrace
