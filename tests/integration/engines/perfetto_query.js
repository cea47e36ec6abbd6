// Perfetto's own trace processor, run as its UI runs it in a browser's worker, answers a question about a trace: one row a line.
// usage: node perfetto_query.js FOLDER_OF_THE_UI TRACE SQL    (SQL of one column of text)
// Messages are as published: TraceProcessorRpc of protos/perfetto/trace_processor/trace_processor.proto.
const fs = require('fs');
const path = require('path');
const [, , ui, trace, sql] = process.argv;

// ---- protobuf, as far as needed
function varint(value) {
  return value < 128 ? [value] : [(value & 127) | 128, ...varint(value >>> 7)];
}
const number = (field, value) => Buffer.from([...varint(field << 3), ...varint(value)]);
const bytes = (field, value) => Buffer.concat([Buffer.from([...varint((field << 3) | 2), ...varint(value.length)]), value]);

function fields(message, wanted) {  // the values of that field
  const found = [];
  let at = 0;
  const next = () => {
    let value = 0;
    for (let scale = 1;; scale *= 128) {
      const byte = message[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  const kinds = {0: next, 1: () => at += 8, 2: () => { const length = next(); return message.subarray(at, at += length); }};
  while (at < message.length) {
    const key = next(), value = kinds[key & 7]();
    if (key >> 3 === wanted) found.push(value);
  }
  return found;
}

// ---- answers
function fail(why) {
  console.error(`perfetto_query.js: ${why}`);
  process.exit(1);
}
function answer(response) {
  fields(response, 5).forEach(fail);  // fatal_error
  for (const result of [201, 203].flatMap(field => fields(response, field))) fields(result, 2).filter(why => why.length).forEach(fail);
  for (const batch of fields(response, 203).flatMap(result => fields(result, 3))) {
    const text = Buffer.concat(fields(batch, 5)).toString();  // each cell ends in a zero
    process.stdout.write(text.replaceAll('\0', '\n'));
  }
}

// ---- the worker; `process` is hidden from it, by which it would know that this is no browser
const port = {postMessage: stream => fields(Buffer.from(stream), 1).forEach(answer)};
const self = {location: {href: 'http://ui/engine_bundle.js'}};
class XMLHttpRequest {
  open(method, url) { this.response = fs.readFileSync(path.join(ui, path.basename(url))); }
  send() {}
}
const engine = fs.readFileSync(path.join(ui, 'engine_bundle.js'), 'utf8');
const silent = {...console, log() {}, warn() {}};
Function('self', 'WorkerGlobalScope', 'process', 'XMLHttpRequest', 'console', engine)(self, self, undefined, XMLHttpRequest, silent);
self.onmessage({data: port});

function ask(sequence, method, argument) {
  const message = bytes(1, Buffer.concat([number(1, sequence), number(2, method), ...argument]));
  port.onmessage({data: new Uint8Array(message)});
}
setImmediate(() => {  // when the engine's own promise has been kept
  ask(0, 1, [bytes(101, fs.readFileSync(trace))]);  // TPM_APPEND_TRACE_DATA
  ask(1, 2, []);                                    // TPM_FINALIZE_TRACE_DATA
  ask(2, 3, [bytes(103, bytes(1, Buffer.from(sql)))]);  // TPM_QUERY_STREAMING
});
