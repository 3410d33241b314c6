// Package api holds the types of pando's HTTP API, version 1: requests, answers, error kinds and
// stream frames. It imports no other package of this module, so that other programs can import
// it.
package api

import _ "embed"

// OpenAPI describes the HTTP API, as OpenAPI 3.1 in JSON. `make generate` writes it from the
// routes and the types of this package.
//
//go:embed openapi.json
var OpenAPI []byte
