package daemon

import (
	"net/http"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/oci"
)

// What names something of the daemon's host needs more than starting things in
// cells does: whoever could import any directory could read the host's files,
// and a run without isolation is one on the host.

// reaches lists what of the host a request names. The text of a policy can name
// mounts.
func reaches(from, backend, image, kernel, policy string, mounts []string) (what []string) {
	if from != "" {
		what = append(what, "the directory "+clip(from))
	}
	if backend == "none" {
		what = append(what, "backend none")
	}
	if hostImage(image) {
		what = append(what, "the image "+clip(image))
	}
	if kernel != "" {
		what = append(what, "the kernel "+clip(kernel))
	}
	for _, m := range mounts {
		what = append(what, "the mount "+clip(m))
	}
	if policy != "" {
		what = append(what, "what a policy of one's own may mount")
	}
	return what
}

// hostImage reports whether an image is a path of the host, and not a reference
// to a registry or the host's own system.
func hostImage(image string) bool {
	return strings.HasPrefix(image, "dir:") || oci.IsPath(strings.TrimPrefix(image, "oci:"))
}

// mayReach refuses what names something of the host, unless who asks may do
// everything.
func mayReach(r *http.Request, what []string) error {
	p, ok := access.From(r.Context())
	if len(what) == 0 || ok && p.Level.Allows(Admin) && !p.Restricted() {
		return nil
	}
	if p.Restricted() { // other cells' files are on the host
		return cell.Errorf(cell.Denied, "daemon", "use a token without labels, or leave it out", "%s belongs to the daemon's host, and the token %s is restricted to %s", strings.Join(what, ", "), p.Name, access.LabelText(p.Bounds.Labels))
	}
	return cell.Errorf(cell.Denied, "daemon", "use a token of scope admin, or leave it out", "%s belongs to the daemon's host, and the token %s is of scope %s", strings.Join(what, ", "), p.Name, p.Level)
}

func runReaches(req api.RunRequest) []string {
	backend := req.Backend
	if req.Prefer == "none" { // where Backend is not given; and nobody prefers it by chance
		backend = req.Prefer
	}
	what := reaches(req.From, backend, req.Image, req.Kernel, req.Policy, req.Mounts)
	if req.OnSuccess == "apply" {
		what = append(what, "the source, which --on-success apply writes to,")
	}
	return what
}

// policyReaches: a project's policy file is read from the source.
func policyReaches(req api.PolicyRequest) []string {
	what := runReaches(req.Run)
	if req.Of == "" && req.Run.From == "" && req.Dir != "" {
		what = append(what, "the directory "+clip(req.Dir))
	}
	return what
}
