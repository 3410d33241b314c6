package e2b

import (
	"reflect"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// request is a type that is read from a body: JSON, or a message of the Connect protocol. Other
// types can't be read, and each of these is in TestX01EveryFieldIsClassified.
type request interface {
	createRequest | connectRequest | forkRequest | snapshotRequest | timeoutRequest | refreshRequest | pauseRequest | network | templateRequest | buildRequest |
		contextRequest | executeRequest | composeRequest | tagsRequest | untagRequest |
		startRequest | processRequest | inputRequest | signalRequest | updateRequest | inputMessage | pathRequest | moveRequest | listRequest | watchRequest | watcherID | struct{}
}

var harmless access.Names = access.Harmless

// fields classifies every field of every request by whether it can name something of the
// daemon's host. As in internal/daemon, a missing field is forbidden for callers that may not
// name the host. Fields of anonymous structs are listed without a type.
var fields = access.Fields{
	// A sandbox.
	"createRequest.templateID":            harmless, // an existing template, snapshot or base
	"createRequest.metadata":              backendOf,
	"createRequest.envVars":               harmless, // of its commands
	"createRequest.timeout":               harmless,
	"createRequest.allow_internet_access": harmless, // the gateway connects, and refuses the host's own addresses
	"createRequest.autoPause":             harmless,
	"createRequest.autoPauseMemory":       harmless,
	"autoResume.enabled":                  harmless,
	"createRequest.secure":                harmless,
	"createRequest.mcp":                   harmless, // refused for every caller
	"createRequest.iam":                   harmless, // refused for every caller
	"createRequest.volumeMounts":          harmless, // refused for every caller
	"connectRequest.timeout":              harmless,
	"connectRequest.memory":               harmless,
	"connectRequest.autoPause":            harmless,
	"forkRequest.timeout":                 harmless,
	"forkRequest.count":                   harmless,
	"snapshotRequest.name":                harmless,
	"timeoutRequest.timeout":              harmless,
	"refreshRequest.duration":             harmless,
	"pauseRequest.memory":                 harmless,
	"network.allowOut":                    harmless, // the gateway connects, and refuses the host's own addresses
	"network.denyOut":                     harmless,
	"network.allowPublicTraffic":          harmless,
	"network.rules":                       harmless, // headers that the caller has
	"network.egressProxy":                 harmless, // refused for every caller
	"network.maskRequestHost":             harmless, // refused for every caller
	"network.httpsPorts":                  harmless, // refused for every caller
	"network.allow_internet_access":       harmless,

	// A template that is built by steps, which run in its cell.
	"templateRequest.name": harmless, "templateRequest.alias": harmless, "templateRequest.tags": harmless, "templateRequest.cpuCount": harmless, "templateRequest.memoryMB": harmless,
	"buildRequest.fromImage":    imageOfHost,
	"buildRequest.fromTemplate": harmless,                                                                         // a template or snapshot that the caller sees
	"registryLogin.type":        harmless, "registryLogin.username": harmless, "registryLogin.password": harmless, // for a registry that the operator allows
	"tagsRequest.target": harmless, "tagsRequest.tags": harmless, "untagRequest.name": harmless, "untagRequest.tags": harmless,
	"buildRequest.startCmd": harmless, "buildRequest.readyCmd": harmless, "buildRequest.force": harmless,
	"buildStep.type": harmless, "buildStep.args": harmless, "buildStep.force": harmless,
	"buildStep.filesHash": harmless, // of files that the caller has uploaded

	// In a sandbox: its own paths, processes and code.
	"contextRequest.language": harmless, "contextRequest.cwd": harmless,
	"executeRequest.code": harmless, "executeRequest.context_id": harmless, "executeRequest.language": harmless, "executeRequest.env_vars": harmless,
	"composeRequest.source_paths": harmless, "composeRequest.destination": harmless, "composeRequest.username": harmless,
	"processConfig.cmd": harmless, "processConfig.args": harmless, "processConfig.envs": harmless, "processConfig.cwd": harmless,
	".cols": harmless, ".rows": harmless, // of a terminal
	"startRequest.tag": harmless, "startRequest.stdin": harmless,
	"selector.pid": harmless, "selector.tag": harmless,
	"input.stdin": harmless, "input.pty": harmless,
	"signalRequest.signal":   harmless,
	"inputMessage.keepalive": harmless,
	"pathRequest.path":       harmless, "moveRequest.source": harmless, "moveRequest.destination": harmless,
	"listRequest.path": harmless, "listRequest.depth": harmless,
	"watchRequest.path": harmless, "watchRequest.recursive": harmless, "watchRequest.includeEntry": harmless, "watchRequest.allowNetworkMounts": harmless,
	"watcherID.watcherId": harmless,
}

// backendOf: one key of the metadata chooses a backend. A command on one without isolation is
// one on the host.
func backendOf(_, field reflect.Value) []string {
	m, _ := field.Interface().(map[string]string)
	if b := m[metaBackend]; b != "" && !slices.Contains(isolating, b) {
		return []string{"backend " + cell.Clip(b)}
	}
	return nil
}

// imageOfHost: an image is one of a registry, or a path on the host.
func imageOfHost(_, field reflect.Value) []string {
	image := field.String()
	if !strings.HasPrefix(image, "/") && !strings.HasPrefix(image, ".") && !strings.HasPrefix(image, "dir:") && !strings.HasPrefix(image, "dockerfile:") && !strings.HasPrefix(image, "oci:") {
		return nil
	}
	return []string{"the image " + cell.Clip(image)}
}
