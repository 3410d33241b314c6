const crypto = require("crypto");
globalThis.draw = () => [
  ["crypto.randomBytes", crypto.randomBytes(16).toString("hex")],
  ["crypto.randomUUID", crypto.randomUUID()],
  ["crypto.getRandomValues", Buffer.from(crypto.webcrypto.getRandomValues(new Uint8Array(16))).toString("hex")],
  ["crypto.generateKeyPair", crypto.generateKeyPairSync("ed25519").publicKey.export({ type: "spki", format: "der" }).toString("hex")],
  ["Math.random", Math.random()],
];
globalThis.draws = () => { for (let i = 0; i < 20; i++) for (const [k, v] of draw()) console.log(k, v); };
draw();
