"""Distribution policies: data that says which parts of a training loop run where."""

from fragflow.policies.named import ALIASES as ALIASES
from fragflow.policies.named import POLICIES as POLICIES
from fragflow.policies.named import PolicyAlias as PolicyAlias
from fragflow.policies.named import PolicyName as PolicyName
from fragflow.policies.named import actors_and_learner as actors_and_learner
from fragflow.policies.named import devices_apart as devices_apart
from fragflow.policies.named import environments_apart as environments_apart
from fragflow.policies.named import everything_together as everything_together
from fragflow.policies.named import named_policy as named_policy
from fragflow.policies.named import parameter_server as parameter_server
from fragflow.policies.policy import Deployment as Deployment
from fragflow.policies.policy import Place as Place
from fragflow.policies.policy import Placed as Placed
from fragflow.policies.policy import Policy as Policy
from fragflow.policies.policy import assign as assign
from fragflow.policies.policy import place as place
from fragflow.policies.synchronisation import LOCKSTEP as LOCKSTEP
from fragflow.policies.synchronisation import Asynchronous as Asynchronous
from fragflow.policies.synchronisation import Lag as Lag
from fragflow.policies.synchronisation import Lockstep as Lockstep
from fragflow.policies.synchronisation import Synchronisation as Synchronisation
from fragflow.policies.synchronisation import synchronisation as synchronisation
