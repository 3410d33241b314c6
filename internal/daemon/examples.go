package daemon

import (
	"net/http"
	"strings"
	"sync"
)

// examples are request bodies for the documentation page, by method and path.
var examples = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"POST /v1/daemon/drain":                    `{"undo": true}`,
		"POST /v1/tokens":                          `{"name": "ci", "scope": "run"}`,
		"POST /v1/gc":                              `{"dry_run": true}`,
		"POST /v1/cells":                           `{"name": "web", "lease": {"for": "1h", "then": "pause"}}`,
		"POST /v1/cells/{cell}/lease":              `{"for": "30m", "labels": {"team": "a"}}`,
		"POST /v1/cells/{cell}/checkpoints":        `{"message": "before the migration"}`,
		"POST /v1/cells/{cell}/restore":            `{"number": 2, "lose": true}`,
		"POST /v1/cells/{cell}/undo":               `{"dry_run": true}`,
		"POST /v1/cells/{cell}/fork":               `{"count": 3, "name": "try"}`,
		"POST /v1/cells/{cell}/branch":             `{"count": 2}`,
		"POST /v1/cells/{cell}/execs":              `{"command": ["sh", "-c", "echo hello"], "wait": true}`,
		"POST /v1/cells/{cell}/eval":               `{"code": "6 * 7"}`,
		"POST /v1/cells/{cell}/mkdir":              `{"path": "results"}`,
		"POST /v1/cells/{cell}/rename":             `{"path": "draft.txt", "to": "results/final.txt"}`,
		"POST /v1/execs/{exec}/signal":             `{"signal": "SIGTERM"}`,
		"POST /v1/templates":                       `{"name": "py", "warm": "python", "setup": "import json"}`,
		"POST /v1/templates/{template}/fork":       `{"count": 10, "eval": "6 * 7"}`,
		"POST /v1/images":                          `{"image": "debian:12"}`,
		"POST /v1/plans":                           `{"command": ["make"], "from": "/home/me/project"}`,
		"POST /v1/runs":                            `{"command": ["make", "test"], "cell": "web"}`,
		"POST /v1/races":                           `{"count": 3, "attempt": {"command": ["./fix", "--seed", "{{.n}}"], "from": "/home/me/project", "check": "make test"}}`,
		"POST /v1/runs/{run}/accept":               `{"dry_run": true}`,
		"POST /v1/runs/{run}/sign-offs":            `{"envelope": {"payload": "e30=", "payloadType": "application/vnd.in-toto+json", "signatures": [{"keyid": "sha256:…", "sig": "…"}]}}`,
		"POST /v1/ledger/keys":                     `{"reason": "a new year"}`,
		"POST /v1/cells/{cell}/sign-offs":          `{"envelope": {"payload": "e30=", "payloadType": "application/vnd.in-toto+json", "signatures": [{"keyid": "sha256:…", "sig": "…"}]}}`,
		"POST /v1/runs/{run}/hold":                 `{"reason": "case 4711"}`,
		"POST /v1/cells/{cell}/hold":               `{"release": true, "reason": "case 4711 is closed"}`,
		"POST /v1/runs/{run}/erase":                `{"what": ["output"], "reason": "personal data", "dry_run": true}`,
		"POST /v1/runs/{run}/discard":              `{}`,
		"POST /v1/runs/{run}/revert":               `{"dry_run": true}`,
		"POST /v1/cells/{cell}/accept":             `{"dry_run": true}`,
		"POST /v1/cells/{cell}/discard":            `{"dry_run": true}`,
		"POST /v1/cells/{cell}/sync":               `{"dry_run": true}`,
		"POST /v1/cells/{cell}/revert":             `{"dry_run": true}`,
		"POST /v1/policies/check":                  `{"name": "pando.policy.yaml", "text": "version: 1\n"}`,
		"POST /v1/policies/show":                   `{"of": "web"}`,
		"POST /v1/policies/why":                    `{"of": "web", "request": "connect example.org:443"}`,
		"POST /v1/policies/diff":                   `{"a": {"of": "web"}, "b": {"of": "web2"}}`,
		"POST /v1/runs/{run}/policy/replay":        `{}`,
		"POST /v1/runs/{run}/replay":               `{"verify": true}`,
		"POST /v1/policies/allow":                  `{"path": "/home/me/project/pando.policy.yaml"}`,
		"POST /v1/credentials":                     `{"credential": "forge", "secret": "…", "for": ["https://api.example.org/"]}`,
		"POST /v1/credentials/{credential}/revoke": `{}`,
		"POST /v1/approvals/{approval}/approve":    `{}`,
	}
})

// docsWords are the path parameters of examples.
var docsWords = sync.OnceValue(func() *strings.Replacer {
	return strings.NewReplacer("{cell}", "web", "{run}", "web:latest", "{template}", "py", "{exec}", "e-0123456789abcdef", "{operation}", "o-0123456789abcdef",
		"{port}", "8000", "{rest...}", "index.html", "{receipt}", "web:latest", "{credential}", "forge", "{token}", "ci", "{approval}", "q-0123456789abcdef", "{name}", "stdout", "{cache}", "k-0123456789abcdef", "{race}", "x-0123456789abcdef")
})

// docsQuery are query parameters without which an example would be of little use.
var docsQuery = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"GET /v1/cells/{cell}/file": "path=results/final.txt", "PUT /v1/cells/{cell}/file": "path=notes.txt", "DELETE /v1/cells/{cell}/file": "path=notes.txt",
		"GET /v1/cells/{cell}/stat": "path=notes.txt&digest=1", "GET /v1/cells/{cell}/list": "path=results&depth=2", "GET /v1/cells/{cell}/watch": "path=.&below=1",
		"GET /v1/cells/{cell}/files": "path=results", "PUT /v1/cells/{cell}/files": "path=.", "GET /v1/cells/{cell}/diff": "form=text", "GET /v1/runs/{run}/diff": "form=stat",
		"GET /v1/runs/{run}": "wait=1", "GET /v1/runs/{run}/events": "follow=1", "DELETE /v1/images": "image=debian:12", "GET /v1/operations/{operation}": "wait=1", "GET /v1/cells": "limit=20",
	}
})

// docsExample is a command that sends a request to a route.
func docsExample(r Route) string {
	path, _ := r.Split()
	key := r.Method + " " + path
	to := docsWords().Replace(path)
	if q := docsQuery()[key]; q != "" {
		to += "?" + q
	}
	if r.Gives == WebSocket {
		return "npx wscat --header \"Authorization: Bearer $PANDO_TOKEN\" \\\n  --connect \"${PANDO_HOST/http/ws}" + to + "\""
	}
	var b strings.Builder
	b.WriteString("curl ")
	switch {
	case r.Gives == eventStream || r.Gives == jsonLines:
		b.WriteString("-N ")
	case r.Method == http.MethodPost && r.In == nil, r.Method == http.MethodDelete:
		b.WriteString("-X " + r.Method + " ")
	}
	b.WriteString("\"$PANDO_HOST" + to + "\" \\\n  -H \"Authorization: Bearer $PANDO_TOKEN\"")
	switch {
	case r.In != nil:
		b.WriteString(" -H \"Content-Type: application/json\" \\\n  -d '" + examples()[key] + "'")
	case r.Takes == tarball:
		b.WriteString(" -H \"Content-Type: " + tarball + "\" \\\n  -T archive.tar")
	case r.Takes != "":
		b.WriteString(" \\\n  -T notes.txt")
	case r.Gives == tarball:
		b.WriteString(" | tar -x")
	}
	return b.String()
}
