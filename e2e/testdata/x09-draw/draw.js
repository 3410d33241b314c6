// Each of these programs draws for ever, and appends what it has drawn to log-NAME: lines
// of "generator value", those of a round in one write.
const crypto = require("crypto"), fs = require("fs");
const log = fs.openSync("log-node", "a");
setInterval(() => {
  fs.writeSync(log, [
    ["crypto.randomBytes", crypto.randomBytes(16).toString("hex")],
    ["crypto.randomUUID", crypto.randomUUID()],
    ["crypto.getRandomValues", Buffer.from(crypto.webcrypto.getRandomValues(new Uint8Array(16))).toString("hex")],
    ["crypto.generateKeyPair", crypto.generateKeyPairSync("ed25519").publicKey.export({ type: "spki", format: "der" }).toString("hex")],
    ["Math.random", Math.random()],
  ].map(([k, v]) => k + " " + v + "\n").join(""));
}, 200);
