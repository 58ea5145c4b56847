// Server-sent events, read with fetch. Unlike EventSource, it reports why a stream was refused, leaves the time of a retry to
// the caller, and can send Last-Event-ID with the first request.

/**
 * Yields {id, event, data} until the stream ends. `onSign` is called whenever data arrive, comments included.
 * Several lines of data are joined; an id is valid until the next one, as the standard says.
 */
export async function* readEvents(body, onSign) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let id = '';
  let event = '';
  let data = [];
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      onSign();
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === '') {
          if (data.length) yield { id, event: event || 'message', data: data.join('\n') };
          event = '';
          data = [];
          continue;
        }
        const [, field, text] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (field === 'data') data.push(text);
        else if (field === 'id') id = text;
        else if (field === 'event') event = text;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
