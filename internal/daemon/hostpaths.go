package daemon

import (
	"context"
	"net/http"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/paths"
)

// Naming something of the daemon's host needs more access than starting things in cells: a
// caller that could import any directory could read the host's files, and a run without
// isolation is a command on the host.

// mayName checks every body that decode reads. MCP's tools are checked as well: they send the
// caller's own token.
func mayName(ctx context.Context, request any) error { return fields.MayName(ctx, request) }

var harmless access.Names = access.Harmless

// fields classifies every field of every request. A missing field fails TestX01, and is
// forbidden for callers that may not name the host.
var fields = access.Fields{
	// A run, and its plan: /v1/runs, /v1/plans, /v1/policies.
	"RunRequest.command":            programOfHost,
	"AgentRequest.name":             harmless,
	"AgentRequest.prompt":           harmless,
	"AgentRequest.autonomy":         harmless, // of the agent, in its cell
	"AgentRequest.trust_repository": harmless, // of the agent, in its cell
	"AgentRequest.trust_content":    harmless, // the same, as far as it is what is there
	"AgentRequest.continue":         harmless,
	"HomeFile.kind":                 harmless, "HomeFile.path": harmless, "HomeFile.content": harmless, "HomeFile.executable": harmless,
	"RunRequest.from":         hostThing("the directory "),
	"RunRequest.repositories": hostThing("the directory "),
	"RunRequest.upload":       harmless, // an upload of the caller, and of no other
	"RunRequest.cell":         harmless,
	"RunRequest.backend":      withoutIsolation,
	"RunRequest.prefer":       withoutIsolation,
	"RunRequest.image":        imageOfHost,
	"RunRequest.kernel":       hostThing("the kernel "),
	"RunRequest.policy":       policyText,
	"RunRequest.policy_name":  harmless, // for messages
	"RunRequest.anew":         harmless,
	"RunRequest.mounts":       hostThing("the mount "),
	"RunRequest.read_only":    harmless,
	"RunRequest.caches":       cachesOfHost,
	"RunRequest.cache_write":  hostThing("what is kept of caches: "),
	"RunRequest.env":          harmless,    // of the command
	"ServiceRequest.name":     harmless,    // a host name in the cell
	"ServiceRequest.image":    imageOfHost, // without a kind it is a reference
	"ServiceRequest.command":  harmless,    // it runs in a cell that is isolated
	"ServiceRequest.env":      harmless,
	"ServiceRequest.ready":    harmless, // as command
	"RunRequest.with_secret":  fileOfSource,
	"RunRequest.allow":        harmless, // the gateway connects, and refuses the host's own addresses
	"RunRequest.credentials":  harmless, // every caller of scope run may have them lent
	"RunRequest.workdir":      harmless, // looked up in the cell alone; for its effect on a relative command see there
	"RunRequest.on_failure":   harmless,
	"RunRequest.on_success":   applied,
	"RunRequest.check":        harmless,                 // it runs in a fork of the cell
	"RunRequest.pin":          harmless,                 // looked up in trees of the cell alone
	"RunRequest.notify":       hostThing("the notice "), // a command runs on the host; an address is called from there
	"RunRequest.record":       harmless,
	"RunRequest.tool_log":     harmless, // looked up in the cell alone, no link is followed
	"RunRequest.ref":          harmless, // text for people
	"RunRequest.dry_run":      harmless,
	"RunRequest.inspect":      harmless,
	"Default.key":             harmless, "Default.values": harmless, "Default.of": harmless, // origins of what the request says elsewhere
	"RunRequest.tty":           harmless,
	"RunRequest.rows":          harmless,
	"RunRequest.cols":          harmless,
	"RunRequest.attach":        harmless,
	"RunRequest.caller_env":    callerEnv,
	"RunRequest.caller_dir":    hostThing("the caller's directory "),
	"Limits.cpus":              harmless,
	"Limits.memory":            harmless,
	"Limits.pids":              harmless,
	"Limits.disk":              harmless,
	"Limits.timeout":           harmless,
	"PolicyRequest.of":         harmless,
	"PolicyRequest.dir":        projectDir,
	"PolicyRequest.request":    harmless,
	"PolicyCheckRequest.name":  harmless,                                       // for messages
	"PolicyCheckRequest.text":  harmless,                                       // none of it takes effect
	"PolicyReplayRequest.name": harmless, "PolicyReplayRequest.text": harmless, // as in PolicyCheckRequest
	"AgentRequest.idle_pause":   harmless,
	"Limits.budget":             harmless,
	"AgentRequest.model_url":    harmless, // a host of RunRequest.allow
	"AgentRequest.mode":         harmless, // what RunRequest.allow could say
	"AgentRequest.acknowledge":  harmless,
	"AgentRequest.reason":       harmless,
	"PolicyReplayRequest.dir":   harmless, // nothing is read from there
	"PolicyAllowRequest.path":   hostThing("the policy file "),
	"PolicyAllowRequest.digest": harmless, "PolicyAllowRequest.forget": harmless,

	// A race: its attempt is a RunRequest.
	"RaceRequest.cell": harmless, "RaceRequest.template": harmless, "RaceRequest.name": harmless, "RaceRequest.count": harmless,
	"RaceRequest.parallel": harmless, "RaceRequest.until": harmless, "RaceRequest.discard_losers": harmless,
	"RaceRequest.score":          harmless, // it runs in a fork of the cell
	"RaceRequest.variations":     harmless, // of the command, for its program see programOfHost
	"RaceRequest.env_variations": harmless, // of the command

	// A cell.
	"CreateRequest.name":         harmless,
	"CreateRequest.from":         hostThing("the directory "),
	"CreateRequest.repositories": hostThing("the directory "),
	"CreateRequest.upload":       harmless,
	"CreateRequest.place":        harmless, // the host image follows no links of the host there
	"CreateRequest.backend":      withoutIsolation,
	"CreateRequest.image":        imageOfHost,
	"CreateRequest.kernel":       hostThing("the kernel "),
	"CreateRequest.policy":       policyText,
	"CreateRequest.mounts":       hostThing("the mount "),
	"CreateRequest.read_only":    harmless,
	"CreateRequest.caches":       cachesOfHost,
	"CreateRequest.cache_write":  hostThing("what is kept of caches: "),
	"CreateRequest.env":          harmless,
	"CreateRequest.allow":        harmless,
	"CreateRequest.credentials":  harmless,
	"CreateRequest.with_secret":  fileOfSource,
	"CreateRequest.labels":       harmless,
	"CreateRequest.caller_env":   callerEnv,
	"CreateRequest.caller_dir":   hostThing("the caller's directory "),
	"LeaseRequest.for":           harmless,
	"LeaseRequest.then":          harmless,
	"LeaseRequest.extend":        harmless,
	"LeaseRequest.labels":        harmless,
	"LeaseRequest.env":           harmless,

	// A template, and forks of it.
	"TemplateRequest.name":        harmless,
	"TemplateRequest.from":        hostThing("the directory "),
	"TemplateRequest.upload":      harmless,
	"TemplateRequest.backend":     withoutIsolation,
	"TemplateRequest.image":       imageOfHost,
	"TemplateRequest.kernel":      hostThing("the kernel "),
	"TemplateRequest.warm":        harmless, // it runs in the cell
	"TemplateRequest.setup":       harmless,
	"TemplateRequest.ready":       harmless,
	"TemplateRequest.timeout":     harmless,
	"TemplateRequest.allow":       harmless,
	"TemplateRequest.credential":  harmless,
	"TemplateRequest.policy":      policyText,
	"TemplateRequest.env":         harmless,
	"TemplateRequest.with_secret": fileOfSource,
	"TemplateRequest.labels":      harmless,
	"TemplateRequest.caller_env":  callerEnv,
	"TemplateRequest.caller_dir":  hostThing("the caller's directory "),
	"TemplateRequest.dry_run":     harmless,
	"WarmForkRequest.count":       harmless,
	"WarmForkRequest.name":        harmless,
	"WarmForkRequest.eval":        harmless,
	"WarmForkRequest.command":     harmless,
	"WarmForkRequest.timeout":     harmless,
	"WarmForkRequest.dry_run":     harmless,
	"WarmForkRequest.remove":      harmless,
	"WarmForkRequest.certify":     harmless, // it only makes the request stricter
	"WarmForkRequest.at_fork":     harmless, // as a command of an exec

	// Requests about an existing cell.
	"CheckpointRequest.message": harmless,
	"RestoreRequest.number":     harmless, "RestoreRequest.digest": harmless, "RestoreRequest.lose": harmless, "RestoreRequest.verify": harmless, "RestoreRequest.files": harmless, "RestoreRequest.dry_run": harmless, "RestoreRequest.certify": harmless, "RestoreRequest.at_fork": harmless,
	"SyncRequest.paths": harmless, "SyncRequest.no_conflicts": harmless, "SyncRequest.dry_run": harmless, // of a source that the cell has
	"UndoRequest.to": harmless, "UndoRequest.turn": harmless, "UndoRequest.dry_run": harmless, "UndoRequest.lose": harmless,
	"UndoRequest.keep_source": harmless, // a caller that may not name the source has it anyway: see View.Undo
	"ForkRequest.number":      harmless, "ForkRequest.turn": harmless, "ForkRequest.name": harmless, "ForkRequest.count": harmless, "ForkRequest.files": harmless, "ForkRequest.certify": harmless, "ForkRequest.at_fork": harmless,
	"ReplayRequest.verify": harmless, "ReplayRequest.until": harmless, "ReplayRequest.name": harmless, "ReplayRequest.env": harmless, "ReplayRequest.keep": harmless, "ReplayRequest.ignore_times": harmless,
	"ReplayRequest.from":  hostThing("the directory "),
	"BranchRequest.count": harmless, "BranchRequest.name": harmless, "BranchRequest.certify": harmless, "BranchRequest.at_fork": harmless, // as a command of an exec
	"EvalRequest.code": harmless, "EvalRequest.timeout": harmless, "EvalRequest.fresh": harmless, "EvalRequest.kind": harmless,
	"ExecRequest.command": harmless, "ExecRequest.env": harmless, "ExecRequest.workdir": harmless, "ExecRequest.timeout": harmless, "ExecRequest.tty": harmless,
	"ExecRequest.rows": harmless, "ExecRequest.cols": harmless, "ExecRequest.attach": harmless, "ExecRequest.wait": harmless,
	"ExecRequest.caller_env": callerEnv,
	"SignalRequest.signal":   harmless,
	"FileRequest.path":       harmless, "FileRequest.to": harmless, // in the cell
	"DiscardRequest.dry_run": harmless, "DiscardRequest.lose": harmless, "DiscardRequest.reason": harmless, "RevertRequest.dry_run": harmless, "RevertRequest.reason": harmless,
	"AcceptRequest.apply":   hostThing("the source, which apply writes to,"),
	"AcceptRequest.include": harmless, "AcceptRequest.paths": harmless, "AcceptRequest.patch": harmless, "AcceptRequest.exact": harmless, "AcceptRequest.merge": harmless, "AcceptRequest.no_conflicts": harmless, "AcceptRequest.commits": harmless, "AcceptRequest.sign": hostThing("the key "), "AcceptRequest.ssh_agent": hostThing("the SSH agent "), "AcceptRequest.strict": harmless, "AcceptRequest.ignored": harmless, "AcceptRequest.force": harmless, // of what is applied
	"KeyChangeRequest.revoke": harmless, "KeyChangeRequest.since": harmless, "KeyChangeRequest.reason": harmless,
	"SignOffRequest.envelope": harmless,                                                                                                                                    // a signature
	"HoldRequest.reason":      harmless, "HoldRequest.release": harmless, "EraseRequest.what": harmless, "EraseRequest.reason": harmless, "EraseRequest.dry_run": harmless, // refused to a caller that may not name files of the host
	"AcceptRequest.reason": harmless, "AcceptRequest.dry_run": harmless, "AcceptRequest.expect": harmless,
	"AcceptRequest.other_branch": harmless, // it does not widen what apply writes

	// The installation.
	"ImagePullRequest.image":       imageOfHost,
	"ImagePullRequest.user":        harmless,
	"ImagePullRequest.password":    harmless,
	"ImagePullRequest.caller_dir":  hostThing("the caller's directory "),
	"CredentialRequest.credential": harmless, "CredentialRequest.kind": harmless, "CredentialRequest.secret": harmless, "CredentialRequest.for": harmless, "CredentialRequest.as": harmless,
	"CredentialRequest.env": harmless, "CredentialRequest.comment": harmless, "CredentialRequest.replace": harmless,
	"CredentialRequest.key":   hostThing("the key of an SSH agent "),
	"CredentialRequest.login": harmless, // it says how path is read
	"CredentialRequest.path":  hostThing("the login file "),
	"RevokeRequest.cell":      harmless, "RevokeRequest.subtree": harmless, "RevokeRequest.all": harmless, "RevokeRequest.undo": harmless,
	"ApprovalRequest.scope": harmless,
	"TokenRequest.name":     harmless, "TokenRequest.scope": harmless, "TokenRequest.expires": harmless, "TokenRequest.labels": harmless, "TokenRequest.max_cells": harmless,
	"TokenRequest.ttl": harmless, "TokenRequest.rate": harmless,
	"GCRequest.dry_run": harmless,
	"DrainRequest.undo": harmless,
}

// words classifies the parameters of paths and queries, as fields does those of bodies. A
// missing one fails TestX01, and is forbidden for callers that may not name the host.
var words = map[string]func(value string) []string{
	// Objects of this installation.
	"cell": harmlessWord, "run": harmlessWord, "race": harmlessWord, "receipt": harmlessWord, "credential": harmlessWord, "token": harmlessWord, "template": harmlessWord,
	"cache": harmlessWord, "source": harmlessWord, // compared with what records have
	"exec": harmlessWord, "approval": harmlessWord, "operation": harmlessWord,
	"image": imageWord,
	"dir":   harmlessWord, // for callers that may not name the host it is compared with sources, and not looked up
	"name":  harmlessWord, // one of a fixed list of records

	// In a cell.
	"path": harmlessWord, "port": harmlessWord, "rest": harmlessWord, "depth": harmlessWord, "below": harmlessWord, "digest": harmlessWord,

	// Forms of requests and answers.
	"cascade": harmlessWord, "force": harmlessWord, "dry_run": harmlessWord, "timeout": harmlessWord, "objects": harmlessWord, "from": harmlessWord, "from_cell": harmlessWord, "to": harmlessWord, "form": harmlessWord, "colour": harmlessWord, "width": harmlessWord,
	"ignored": harmlessWord, "include": harmlessWord, "only": harmlessWord, "of": harmlessWord, "input": harmlessWord, "screen": harmlessWord, "rows": harmlessWord, "cols": harmlessWord, "client": harmlessWord, "stdout": harmlessWord, "stderr": harmlessWord, "limit": harmlessWord, "cursor": harmlessWord, "label": harmlessWord, "kind": harmlessWord,
	"denied": harmlessWord, "first": harmlessWord, "end": harmlessWord, "since": harmlessWord, "not_before": harmlessWord, "follow": harmlessWord, "format": harmlessWord, "wait": harmlessWord, "all": harmlessWord, "after": harmlessWord,
}

func harmlessWord(string) []string { return nil }

func imageWord(image string) []string { return imageOfHost(reflect.Value{}, reflect.ValueOf(image)) }

// mayAsk rejects a request with a path or query that names something of the host, as mayName
// does for bodies.
func mayAsk(r *http.Request, route Route) error {
	if p, ok := access.From(r.Context()); ok && p.MayNameHost() {
		return nil
	}
	var what []string
	query := r.URL.Query()
	path, asked := route.Split()
	for _, name := range append(asked, PathWords(path)...) {
		for _, value := range append(query[name], r.PathValue(name)) {
			switch named := words[name]; {
			case value == "":
			case named == nil:
				what = append(what, "the parameter "+name+", which is not classified,")
			default:
				what = append(what, named(value)...)
			}
		}
	}
	return access.RefuseHost(r.Context(), what)
}

// hostThing classifies a field with values that all name something of the host.
func hostThing(what string) access.Names {
	return func(_, field reflect.Value) (list []string) {
		switch field.Kind() {
		case reflect.Slice:
			for i := range field.Len() {
				list = append(list, what+cell.Clip(field.Index(i).String()))
			}
		case reflect.Bool:
			list = append(list, what)
		default:
			list = append(list, what+cell.Clip(field.String()))
		}
		return list
	}
}

// cachesOfHost: what comes to the cache of a source of the host, later cells of its owner use.
func cachesOfHost(_, field reflect.Value) (list []string) {
	for i := range field.Len() {
		if name := field.Index(i).String(); name != "off" {
			list = append(list, "the cache "+cell.Clip(name))
		}
	}
	return list
}

// fileOfSource: the owner of an uploaded source knows what it contains.
func fileOfSource(request, field reflect.Value) []string {
	if request.FieldByName("Upload").String() != "" {
		return nil
	}
	return hostThing("the file of the source ")(request, field)
}

// withoutIsolation: a command on backend none is one on the host.
func withoutIsolation(_, field reflect.Value) []string {
	if field.String() != "none" {
		return nil
	}
	return []string{"backend none"}
}

// imageOfHost: an image is a reference to a registry, the host's own system, or a path on the
// host.
func imageOfHost(_, field reflect.Value) []string {
	image := field.String()
	if !strings.HasPrefix(image, "dir:") && !strings.HasPrefix(image, "dockerfile:") && !paths.IsImage(strings.TrimPrefix(image, "oci:")) {
		return nil
	}
	return []string{"the image " + cell.Clip(image)}
}

// programOfHost: the host's image mounts the installation directory of a program that the
// command names by path.
func programOfHost(request, field reflect.Value) []string {
	req, ok := request.Interface().(api.RunRequest)
	if !ok || field.Len() == 0 || req.Agent != nil { // an agent's arguments; its program is found in PATH
		return nil
	}
	name := field.Index(0).String()
	if strings.Contains(name, "{{") { // of a race: any path may take the place of a field
		return []string{"the program " + cell.Clip(name)}
	}
	if image := strings.TrimPrefix(req.Image, "oci:"); !strings.Contains(name, "/") || image != "" && image != "host" {
		return nil // found in PATH; or in an image, which imageOfHost checks
	}
	at := name
	if !path.IsAbs(at) {
		at = req.Workdir + "/" + name
	}
	if at = strings.TrimPrefix(at, "/workspace/"); !path.IsAbs(at) || !path.IsAbs(name) && !path.IsAbs(req.Workdir) {
		if at = strings.TrimPrefix(at, "/"); filepath.IsLocal(at) {
			return nil // in the workspace
		}
	}
	if slices.Contains(systemPath, path.Dir(path.Clean(at))) {
		return nil
	}
	return []string{"the program " + cell.Clip(name)}
}

// policyText: a policy can name mounts.
func policyText(_, _ reflect.Value) []string {
	return []string{"what a policy of one's own may mount"}
}

func applied(_, field reflect.Value) []string {
	if field.String() != "apply" {
		return nil
	}
	return []string{"the source, which --on-success apply writes to,"}
}

// projectDir: a project's policy file is read from the directory if the request names no other
// policy.
func projectDir(request, field reflect.Value) []string {
	if req, ok := request.Interface().(api.PolicyRequest); ok && (req.Of != "" || req.Run.From != "") {
		return nil
	}
	return []string{"the directory " + cell.Clip(field.String())}
}

// plainVars are variables of a caller that control the display of text, and have no paths.
var plainVars = []string{"TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "LANG", "LANGUAGE", "TZ"}

// systemPath are the directories in PATH that every cell of the host's image has.
var systemPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// callerEnv: the image makes mounts from a caller's variables (caches, toolchains, settings,
// directories of programs), and SSH_AUTH_SOCK is a socket.
func callerEnv(_, field reflect.Value) (list []string) {
	for i := range field.Len() {
		name, value, _ := strings.Cut(field.Index(i).String(), "=")
		switch {
		case slices.Contains(plainVars, name), strings.HasPrefix(name, "LC_"):
			continue
		case name == "PATH" && !slices.ContainsFunc(strings.Split(value, ":"), func(dir string) bool { return !slices.Contains(systemPath, dir) }):
			continue
		}
		list = append(list, "the variable "+cell.Clip(name)+" of caller_env")
		if len(list) == 8 {
			return append(list, "and more")
		}
	}
	return list
}
