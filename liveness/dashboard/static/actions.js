// The actions of operators. Each explains itself in one sentence, asks for confirmation and reports the outcome.
import { inNamespace, post } from './api.js';
import { ask } from './dialog.js';
import { activityName, counted, taskState } from './words.js';

const REASON = { name: 'reason', label: 'Reason', hint: 'kept with the event' };
const activities = (number) => counted(number, 'activity', 'activities');

/** Each action takes its subject and `done`, a callback for when it has succeeded. */

export function expireWorker(ns, worker, done) {
  ask({
    title: 'Expire worker',
    subject: worker.key,
    sentence: `Its lease ends now and the ${activities(worker.held)} it holds go to others; the process itself is not stopped.`,
    button: 'Expire',
    danger: true,
    fields: [REASON],
    run: async ({ reason }) => {
      const answer = await post(inNamespace(ns, 'worker/expire'), { worker_instance_key: worker.key, reason });
      done();
      return `Expired. ${activities(answer.rescheduled_activities)} rescheduled.`;
    },
  });
}

export function pauseWorker(ns, worker, done) {
  ask({
    title: 'Pause worker',
    subject: worker.key,
    sentence: 'It keeps its lease and finishes what it has, but is handed nothing new until it is resumed.',
    button: 'Pause',
    fields: [REASON],
    run: async ({ reason }) => {
      const answer = await post(inNamespace(ns, 'workers/pause'), { worker_instance_key: worker.key, reason });
      done();
      return answer.changed ? 'Paused.' : 'It was paused already.';
    },
  });
}

export function resumeWorker(ns, worker, done) {
  ask({
    title: 'Resume worker',
    subject: worker.key,
    sentence: worker.draining ? 'Its drain is called off and it is handed work again.' : 'It is handed work again.',
    button: 'Resume',
    run: async () => {
      const answer = await post(inNamespace(ns, 'workers/resume'), { worker_instance_key: worker.key });
      done();
      return answer.changed ? 'Resumed.' : 'It was neither paused nor draining.';
    },
  });
}

export function drainWorker(ns, worker, done) {
  ask({
    title: 'Drain worker',
    subject: worker.key,
    sentence: 'It takes no new work and ends when it is done; what is left after the limit goes to others.',
    button: 'Drain',
    danger: true,
    fields: [{ name: 'limit', label: 'Limit', hint: 'in seconds', value: '60' }, REASON],
    run: async ({ limit, reason }) => {
      const seconds = Number(limit);
      if (!(seconds > 0)) throw new Error('The limit must be a number of seconds above zero.');
      const answer = await post(inNamespace(ns, 'worker/drain'), { worker_instance_key: worker.key, limit: `${seconds}s`, reason });
      done();
      return `Draining. It still holds ${activities(answer.bound_activities)}.`;
    },
  });
}

export function pauseNamespace(ns, done) {
  ask({
    title: 'Pause the whole namespace',
    subject: ns,
    sentence: 'All its workers, those that join later too, keep their leases and finish what they have, but are handed nothing new.',
    button: 'Pause all',
    danger: true,
    fields: [REASON],
    run: async ({ reason }) => {
      const answer = await post(inNamespace(ns, 'workers/pause'), { all: true, reason });
      done();
      return `Paused: ${counted(answer.changed, 'worker')} changed.`;
    },
  });
}

export function resumeNamespace(ns, done) {
  ask({
    title: 'Resume the whole namespace',
    subject: ns,
    sentence: 'All its workers are handed work again, those that were paused or drained on their own too.',
    button: 'Resume all',
    run: async () => {
      const answer = await post(inNamespace(ns, 'workers/resume'), { all: true });
      done();
      return `Resumed: ${counted(answer.changed, 'worker')} changed.`;
    },
  });
}

export function releaseStorm(ns, held, done) {
  ask({
    title: 'End the leases that are held',
    subject: ns,
    sentence: `${counted(held, 'worker')} fell silent together and may still come back. Their leases end now and what they hold goes to others; for a minute, nothing is held.`,
    button: 'Release',
    danger: true,
    fields: [{ ...REASON, hint: "for the server's log" }],
    run: async ({ reason }) => {
      const answer = await post(inNamespace(ns, 'storm/release'), { reason });
      done();
      return `Released: ${counted(answer.released, 'worker')}.`;
    },
  });
}

export function retryActivity(ns, id, done) {
  ask({
    title: 'Give the activity a fresh start',
    subject: activityName(id),
    sentence: 'It becomes available at once; earlier failures and deaths of its workers no longer count.',
    button: 'Retry',
    run: async () => {
      await post(inNamespace(ns, 'activity/retry'), { id });
      done();
      return 'The activity has a fresh start.';
    },
  });
}

export function cancelActivity(ns, id, done) {
  ask({
    title: 'Cancel activity',
    subject: activityName(id),
    sentence: 'It ends for good; a worker that holds it is told to stop.',
    button: 'Cancel it',
    danger: true,
    fields: [{ ...REASON, hint: 'shown with the activity' }],
    run: async ({ reason }) => {
      const answer = await post(inNamespace(ns, 'activity/cancel'), { id, reason });
      done();
      return answer.was_held ? 'Cancelled; its worker is told to stop.' : 'Cancelled.';
    },
  });
}

const ofSchedule = (ns, schedule, verb) => inNamespace(ns, `schedules/${encodeURIComponent(schedule.schedule_id)}/${verb}`);

export function pauseSchedule(ns, schedule, done) {
  ask({
    title: 'Pause schedule',
    subject: schedule.schedule_id,
    sentence: 'It does not fire until it is resumed. Ticks that pass meanwhile are not missed.',
    button: 'Pause',
    fields: [REASON],
    run: async ({ reason }) => {
      const answer = await post(ofSchedule(ns, schedule, 'pause'), { reason });
      done();
      return answer.changed ? 'Paused.' : 'It was paused already.';
    },
  });
}

export function resumeSchedule(ns, schedule, done) {
  ask({
    title: 'Resume schedule',
    subject: schedule.schedule_id,
    sentence: 'It continues with its first tick from now on.',
    button: 'Resume',
    fields: [REASON],
    run: async ({ reason }) => {
      const answer = await post(ofSchedule(ns, schedule, 'resume'), { reason });
      done();
      return answer.changed ? 'Resumed.' : 'It was not paused.';
    },
  });
}

export function triggerSchedule(ns, schedule, done) {
  const trigger_id = crypto.randomUUID?.() ?? String(Math.random());
  ask({
    title: 'Fire schedule now',
    subject: schedule.schedule_id,
    sentence: 'It schedules its activity now, beside its ticks, whether or not the one before is finished.',
    button: 'Fire',
    run: async () => {
      const answer = await post(ofSchedule(ns, schedule, 'trigger'), { trigger_id });
      done();
      return `Fired: ${activityName(answer.id)}.`;
    },
  });
}

export function deleteSchedule(ns, schedule, done) {
  ask({
    title: 'Delete schedule',
    subject: schedule.schedule_id,
    sentence: 'It never fires again. Activities that it has scheduled stay as they are.',
    button: 'Delete',
    danger: true,
    fields: [REASON],
    run: async ({ reason }) => {
      await post(ofSchedule(ns, schedule, 'delete'), { reason });
      done();
      return 'Deleted.';
    },
  });
}

export function forgetUnit(ns, unit, done) {
  ask({
    title: 'Forget unit',
    subject: unit.unit,
    sentence: 'Its totals are removed. Should somebody report about it again, it begins anew.',
    button: 'Forget',
    danger: true,
    fields: [REASON],
    run: async ({ reason }) => {
      await post(inNamespace(ns, `progress/${encodeURIComponent(unit.unit)}/forget`), { reason });
      done();
      return 'Forgotten.';
    },
  });
}

export function retryTask(task, done) {
  ask({
    title: 'Retry task',
    subject: activityName(task.activity),
    sentence: 'This reschedule is tried again at once.',
    button: 'Retry',
    run: async () => {
      const answer = await post(`/v1/tasks/${task.task_id}/retry`, {});
      done();
      return `The task is ${taskState(answer.task.state)}.`;
    },
  });
}

export function discardTask(task, done) {
  ask({
    title: 'Discard task',
    subject: activityName(task.activity),
    sentence: 'This reschedule is given up for good: no worker gets the activity because of it.',
    button: 'Discard',
    danger: true,
    run: async () => {
      await post(`/v1/tasks/${task.task_id}/discard`, {});
      done();
      return 'The task is discarded.';
    },
  });
}
