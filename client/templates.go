package client

import (
	"context"
	"net/url"

	"github.com/pando-dev/pando/api"
)

// BuildTemplate makes a template: a cell with a warm interpreter, which is kept to be forked. It
// returns when the template is ready, and passes the output of the set-up to on. When it fails
// nothing of it remains, and an earlier template of that name stays as it was.
func (c *Client) BuildTemplate(ctx context.Context, req api.TemplateRequest, on Listener) (out api.Template, err error) {
	return out, c.stream(ctx, "POST", "/v1/templates", req, on, &out)
}

// Templates lists the templates.
func (c *Client) Templates(ctx context.Context) (out []api.Template, err error) {
	return out, c.do(ctx, "GET", "/v1/templates", nil, nil, &out)
}

// Template shows a template.
func (c *Client) Template(ctx context.Context, name string) (out api.Template, err error) {
	return out, c.do(ctx, "GET", "/v1/templates/"+segment(name), nil, nil, &out)
}

// RemoveTemplate removes a template. If it has living forks, the call fails with a conflict that
// names them, unless req says what happens to them.
func (c *Client) RemoveTemplate(ctx context.Context, name string, req api.TemplateRemoval) (out api.Template, err error) {
	q := url.Values{}
	flag(q, "cascade", req.Cascade)
	flag(q, "force", req.Force)
	flag(q, "dry_run", req.DryRun)
	return out, c.do(ctx, "DELETE", "/v1/templates/"+segment(name), q, nil, &out)
}

// ForkTemplate makes cells from a template, and evaluates or runs in each what req says. It
// calls on.Needs before any cell is made, and on.Fork for each cell when it has answered. An
// error of one cell is in its answer and not an error of the call. When ctx ends, the cells are
// removed.
func (c *Client) ForkTemplate(ctx context.Context, name string, req api.WarmForkRequest, on Listener) (out api.WarmForkResult, err error) {
	return out, c.stream(ctx, "POST", "/v1/templates/"+segment(name)+"/fork", req, on, &out)
}

// Overview returns the usage of templates, pools and cells, and the resources of the host.
func (c *Client) Overview(ctx context.Context) (out api.Overview, err error) {
	return out, c.do(ctx, "GET", "/v1/stats", nil, nil, &out)
}
