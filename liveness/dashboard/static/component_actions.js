// Orders to supervisors. Each explains itself in one sentence, asks for confirmation and says who carries it out.
import { inNamespace, post } from './api.js';
import { ask } from './dialog.js';

const REASON = { name: 'reason', label: 'Reason', hint: 'kept with the event' };
const PROCESSES_MAX = 10_000;

const ORDERS = {
  restart: { sentence: 'Running processes end and new ones start, all at once; what they hold goes to others.', danger: true },
  'rolling restart': { sentence: 'Processes end and start one after the other; each waits until the one before is healthy.' },
  stop: { sentence: 'Running processes end, and none starts until somebody starts them; what they hold goes to others.', danger: true },
  start: { sentence: 'What has stopped or failed starts.' },
  pause: { sentence: 'The current job is finished and no other begins, after a restart neither, until it is resumed.' },
  resume: { sentence: 'Jobs are taken again.' },
  reset: { sentence: 'Earlier restarts no longer count, and what has failed starts.' },
};

const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** `ids`: the components; none for the whole group. `done` is called when the server has the order. */
export function orderComponents(name, ns, group, ids, done) {
  const { sentence, danger = false } = ORDERS[name];
  ask({
    title: `${capital(name)} ${ids.length ? 'component' : 'the whole group'}`,
    subject: ids.join(', ') || group,
    sentence,
    button: capital(name),
    danger,
    fields: [REASON],
    run: ({ reason }) => give(ns, group, { action: actionOf(name), component_ids: ids, reason }, done),
  });
}

export function scaleGroup(ns, group, count, done) {
  ask({
    title: 'Scale the group',
    subject: group,
    sentence: 'Processes start or end until so many run.',
    button: 'Scale',
    fields: [{ name: 'count', label: 'Processes', value: String(count) }, REASON],
    run: ({ count: wanted, reason }) => {
      const number = Number(wanted);
      if (wanted.trim() === '' || !Number.isInteger(number) || number < 0 || number > PROCESSES_MAX) {
        throw new Error('The number of processes must be a whole number, 0 to 10,000.');
      }
      return give(ns, group, { action: actionOf('scale'), count: number, reason }, done);
    },
  });
}

const actionOf = (name) => `COMPONENT_ACTION_${name.toUpperCase().replaceAll(' ', '_')}`;

async function give(ns, group, order, done) {
  const { order_number, supervised } = await post(inNamespace(ns, `component-groups/${encodeURIComponent(group)}/order`), order);
  done();
  return supervised ? `The supervisor has order ${order_number}.` : `Order ${order_number} is kept; the next supervisor of this group carries it out.`;
}
