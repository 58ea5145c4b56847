// Line icons, drawn in the colour of the text around them.
import { html } from './html.js';

const PATHS = {
  overview: 'M3 12h4l2.5-7 5 14L17 12h4',
  workers: 'M4 5h16v5H4zM4 14h16v5H4zM8 7.5h.01M8 16.5h.01',
  components: 'M4 12a8 8 0 0113.7-5.6M20 12a8 8 0 01-13.7 5.6M18 3v4h-4M6 21v-4h4M12 9.5a2.5 2.5 0 100 5 2.5 2.5 0 000-5z',
  registry: 'M5 4h12a2 2 0 012 2v14H7a2 2 0 01-2-2zM5 18a2 2 0 012-2h12M9 8h6M9 11.5h6',
  activities: 'M12 3l8 4.5v9L12 21l-8-4.5v-9zM12 12l8-4.5M12 12v9M12 12L4 7.5',
  queues: 'M4 6h16M4 12h10M4 18h6',
  schedules: 'M12 3a9 9 0 1 0 0 18a9 9 0 1 0 0-18M12 7v5l3 2',
  progress: 'M4 20h16M6 16v-4M11 16V9M16 16V5',
  tasks: 'M9 6h11M9 12h11M9 18h11M4 6l1 1 2-2M4 12l1 1 2-2M4 18l1 1 2-2',
  events: 'M5 5h14M5 10h9M5 15h14M5 20h6',
  insight: 'M4 19h16M5 15l4-5 4 3 6-8M19 5v4M19 5h-4',
  nodes: 'M12 3v6M12 15v6M3 12h6M15 12h6M9 9h6v6H9z',
  sun: 'M12 8a4 4 0 100 8 4 4 0 000-8zM12 2v2M12 20v2M2 12h2M20 12h2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4',
  moon: 'M20 14.5A8 8 0 119.5 4a6.5 6.5 0 0010.5 10.5z',
  keys: 'M3 7h18v10H3zM7 10.5h.01M11 10.5h.01M15 10.5h.01M8 14h8',
  search: 'M11 4a7 7 0 100 14 7 7 0 000-14zM16 16l4.5 4.5',
  warning: 'M12 4l9 16H3zM12 10v4M12 17h.01',
  back: 'M15 5l-7 7 7 7',
  up: 'M6 14l6-6 6 6',
  down: 'M6 10l6 6 6-6',
  close: 'M6 6l12 12M18 6L6 18',
  check: 'M5 12.5l4.5 4.5L19 7.5',
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d=${PATHS[name]} /></svg>`;
}
