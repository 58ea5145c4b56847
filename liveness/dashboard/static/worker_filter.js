// Filters and sorts the rows. A row must contain all words of the filter; "host:db-3" searches one column only. Servers read the
// same text in the same way (liveness/server/filter_query.py), except for the marks, which only the dashboard knows of all workers.
import { marksOf } from './roster.js';

const FIELDS = ['key', 'host', 'build', 'queue', 'state'];

export function matcher(text, states) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean).map(wordOf);
  return (row) =>
    (states.length === 0 || states.some((state) => row.state === state || row[state] === true)) &&
    words.every(({ field, word }) => (field === 'state' ? inState(row, word) : field ? row[field].toLowerCase().includes(word) : row.searchText.includes(word) || inState(row, word)));
}

/** By the beginning: "active" is a part of "inactive", and means something else. */
function inState(row, word) {
  return [row.state.replace(' ', '-'), ...marksOf(row)].some((state) => state.startsWith(word));
}

function wordOf(word) {
  const [, field, rest] = /^([a-z]+):(.+)$/.exec(word) ?? [];
  return FIELDS.includes(field) ? { field, word: rest } : { field: null, word };
}

const text = (of) => (a, b) => (of(a) < of(b) ? -1 : of(a) > of(b) ? 1 : 0);
const number = (of) => (a, b) => of(a) - of(b);
const STATES = ['active', 'inactive', 'cleaned up'];

const ORDERS = {
  key: text((row) => row.key),
  state: number((row) => STATES.indexOf(row.state) - (row.suspect ? 0.5 : 0)),
  // Workers without a lease are sorted last.
  lease: number((row) => row.deadline ?? Number.MAX_SAFE_INTEGER),
  held: number((row) => row.held),
  queue: text((row) => row.queue),
  build: text((row) => row.build),
  host: text((row) => row.host),
};

/** sort: a column's name, with a leading minus for descending order. Equal rows are ordered by their keys. */
export function orderOf(sort) {
  const name = sort.replace(/^-/, '');
  const order = ORDERS[name] ?? ORDERS.key;
  const sign = sort.startsWith('-') ? -1 : 1;
  return (a, b) => sign * order(a, b) || ORDERS.key(a, b);
}
