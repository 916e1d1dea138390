// What stands behind the figures, in words: why a turn was cold, and what that usually comes from.

/** In the order in which they are shown. */
export const COLD = [
  {
    reason: "evicted",
    title: "Evicted",
    what: "Since the conversation's last turn its replica computed so much that its KV cache can't have held both.",
    causes: "More conversations than KV cache. Fewer agents at a time, more replicas, or more cache in each help: a higher --gpu-memory-utilization, an fp8 KV cache.",
  },
  {
    reason: "prefix_changed",
    title: "Prefix changed",
    what: "The cache had room for it: the client sent another beginning than the last time, and all that follows is computed again.",
    causes: "A billing header that a translator merges into the system prompt, system messages in the conversation that the chat template hoists to its top, a time of day in the system prompt, tools that are listed in another order each time.",
  },
  {
    reason: "unexplained",
    title: "Unexplained",
    what: "The engine doesn't say how large its cache is, so it may have been evicted or have changed.",
    causes: "An engine other than vLLM, or one too old to tell.",
  },
  {
    reason: "spilled",
    title: "Spilled",
    what: "The turn, or the one before it, was served away from home because home was over its spill threshold.",
    causes: "More turns at a time than the threshold allows. A higher spill_threshold keeps them at home, where they wait; another replica gives them room.",
  },
  {
    reason: "restarted",
    title: "Restarted",
    what: "The engine was restarted since, and its cache is empty.",
    causes: "A crash, an out-of-memory kill or a deployment. Drain a replica before you restart it.",
  },
  {
    reason: "moved",
    title: "Moved",
    what: "The replica that had the history is down, drains, sleeps or is gone, so the conversation went to another one.",
    causes: "A server that stopped or hung, an operator's drain, a reload that took it out.",
  },
];

/** Turns of which less is known than of others; `field` counts them. */
export const UNSURE = [
  {
    field: "turns_untold",
    title: "Untold",
    what: "The engine counted the prompt but didn't say what of it was cached: all of it counts as computed.",
    causes: "vLLM was started without --enable-prompt-tokens-details.",
  },
  {
    field: "turns_unmeasured",
    title: "Not measured",
    what: "The engine counted nothing: the prompt is estimated from its bytes and taken for computed. Hatched in the chart.",
    causes: "A stream on /v1/chat/completions whose client didn't ask for its usage, or a turn that broke off.",
  },
];

export const HEALTH = {
  unknown: "not looked at yet",
  up: "answers",
  suspect: "gets its own conversations only",
  down: "gets nothing",
  draining: "gets nothing new",
  sleeping: "its engine sleeps",
};
