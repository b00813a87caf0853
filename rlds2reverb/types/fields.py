"""The field names of RLDS, and TF-Agents' messages about data without valid episodes.

Index convention of the whole package: `reward[t]` follows `action[t]` taken at `observation[t]`. An episode of `T`
transitions has `T + 1` steps; the last one (`is_last`) carries the final observation, and its action and reward are
meaningless.

The names are those of RLDS (Ramos et al. 2021, arXiv:2111.02767), section 3.
"""

STEPS = "steps"
OBSERVATION = "observation"
ACTION = "action"
REWARD = "reward"
DISCOUNT = "discount"
IS_FIRST = "is_first"
IS_LAST = "is_last"
IS_TERMINAL = "is_terminal"
#: TF-Agents' field of items and experience, for what a step contains besides the fields of RLDS.
POLICY_INFO = "policy_info"

#: The required fields of an RLDS step, in the order in which messages list them.
STEP_FIELDS = (OBSERVATION, ACTION, REWARD, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL)
FLAG_FIELDS = (IS_FIRST, IS_LAST, IS_TERMINAL)

NEXT_OBSERVATION = f"next_{OBSERVATION}"
#: The fields of an item that is a transition without a time axis.
TRANSITION_FIELDS = (OBSERVATION, ACTION, REWARD, DISCOUNT, NEXT_OBSERVATION)

# The messages of `tf_agents.replay_buffers.rlds_to_reverb`, word for word.
NO_STEPS = "No dataset representing RLDS steps exist in the data."
TERMINAL_NOT_LAST = "Terminal step must be the last step of an episode."
MID_BEFORE_FIRST = "Mid step should not be followed by a first step."
LAST_BEFORE_MID = "Last step of an episode must be followed by a first step."
