// Error reasons as sentences for a person who clicked a button. For other reasons the server's message is shown.

const SENTENCES = {
  WORKER_NOT_FOUND: () => 'The server does not know this worker any more.',
  WORKER_NOT_ACTIVE: () => 'This worker is not active, so there is nothing to end or to drain.',
  WORKER_CLEANED_UP: () => 'This worker was cleaned up: nothing can be done to it any more.',
  ACTIVITY_NOT_FOUND: () => 'This activity is not kept any more.',
  ACTIVITY_FINISHED: ({ state }) => `This activity is ${state ? `${state.toLowerCase()} ` : 'finished '}already.`,
  ACTIVITY_NOT_RETRYABLE: ({ state }) =>
    `Only a quarantined or failed activity can be given a fresh start${state ? `; this one is ${state.toLowerCase()}` : ''}.`,
  COMPONENT_NOT_FOUND: () => 'The server does not know this component any more.',
  COMPONENT_GROUP_NOT_FOUND: () => 'The server does not know this group any more.',
  REGISTRY_ENTRY_NOT_FOUND: () => 'The server does not know this component any more.',
  ORDER_QUOTA_EXCEEDED: () => 'Too many orders wait for the supervisor of this group. Start it, and it carries them out.',
  SUPERVISOR_SILENT: () => 'The supervisor of this group does not run, or does not answer.',
  TASK_NOT_FOUND: () => 'This task is not kept any more.',
  TASK_FINISHED: () => 'This task is finished already.',
  NAMESPACE_NOT_FOUND: ({ namespace }) => `This server does not serve the namespace ${namespace ?? ''}.`,
  DEATH_NOT_FOUND: () => 'No lease of this worker has ended for silence.',
  STORE_FULL: () => 'The disk of the database is full, so nothing can be stored. Make room; the server then goes on by itself.',
  SHARD_UNAVAILABLE: () => 'The part of the data this belongs to is changing hands. Try again in a moment.',
  SHARD_MOVED: () => 'The part of the data this belongs to is changing hands. Try again in a moment.',
  SHUTTING_DOWN: () => 'The server is shutting down. Try again in a moment.',
  NO_NODE_REACHABLE: () => 'No server that is responsible for this can be reached. Try again in a moment.',
  NODE_LOST: () => 'The connection to the server was lost. It is not known whether anything changed: look again.',
  RATE_LIMITED: () => 'Too many calls. Try again in a moment.',
};

export function sentenceFor(reason, message, fields = {}) {
  const sentence = SENTENCES[reason];
  return sentence ? sentence(fields) : message;
}
