/** Read a recorded stream from stdin with assistant-stream's own decoder, as the page does, and print what
 * it made of it: the kinds of chunks, and the state that its own accumulator has at the end.
 * Usage: node read-stream.mjs BYTES-A-PIECE < recorded */

import { AssistantMessageAccumulator, DataStreamDecoder } from "assistant-stream";
import { readFileSync } from "node:fs";

const size = Number(process.argv[2]);
const recorded = new Uint8Array(readFileSync(0));
const pieces = new ReadableStream({
  start(controller) {
    for (let at = 0; at < recorded.length; at += size) controller.enqueue(recorded.slice(at, at + size));
    controller.close();
  },
});
const kinds = new Set();
const seen = new TransformStream({
  transform(chunk, controller) {
    kinds.add(chunk.type);
    controller.enqueue(chunk);
  },
});
const read = pieces.pipeThrough(new DataStreamDecoder()).pipeThrough(seen).pipeThrough(new AssistantMessageAccumulator());
let message;
for await (const each of read) message = each;
process.stdout.write(JSON.stringify({ kinds: [...kinds], state: message.metadata.unstable_state }));
