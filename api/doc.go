// Package api holds the words on the wire: requests, answers, error kinds and
// stream frames of pando's HTTP API, version 1. It imports nothing of ours, so
// that other programs can import it.
package api

import _ "embed"

// OpenAPI describes the HTTP API, as OpenAPI 3.1 in JSON. `make generate`
// writes it from the routes and the types of this package.
//
//go:embed openapi.json
var OpenAPI []byte
