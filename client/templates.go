package client

import (
	"context"
	"net/url"

	"github.com/pando-dev/pando/api"
)

// BuildTemplate makes a template: a cell with a warmed interpreter, which is
// kept to be forked. It returns when the template is ready; on is told what the
// set-up writes. When it fails nothing of it remains, and a template that was
// there under the name stays as it was.
func (c *Client) BuildTemplate(ctx context.Context, req api.TemplateRequest, on Listener) (out api.Template, err error) {
	return out, c.stream(ctx, "POST", "/v1/templates", req, on, &out)
}

// Templates lists the templates there are.
func (c *Client) Templates(ctx context.Context) (out []api.Template, err error) {
	return out, c.do(ctx, "GET", "/v1/templates", nil, nil, &out)
}

// Template shows a template.
func (c *Client) Template(ctx context.Context, name string) (out api.Template, err error) {
	return out, c.do(ctx, "GET", "/v1/templates/"+segment(name), nil, nil, &out)
}

// RemoveTemplate removes a template. While cells that were forked from it live
// it is a conflict that names them, unless req says what to do about them.
func (c *Client) RemoveTemplate(ctx context.Context, name string, req api.TemplateRemoval) (out api.Template, err error) {
	q := url.Values{}
	flag(q, "cascade", req.Cascade)
	flag(q, "force", req.Force)
	flag(q, "dry_run", req.DryRun)
	return out, c.do(ctx, "DELETE", "/v1/templates/"+segment(name), q, nil, &out)
}

// ForkTemplate makes cells out of a template, and has each evaluate or run what
// req says. on.Needs is called before anything is made, on.Fork for each cell
// when it has answered, in the order of the answers. What goes wrong in one cell
// is in its answer and no error of the call. When ctx ends the cells are removed.
func (c *Client) ForkTemplate(ctx context.Context, name string, req api.WarmForkRequest, on Listener) (out api.WarmForkResult, err error) {
	return out, c.stream(ctx, "POST", "/v1/templates/"+segment(name)+"/fork", req, on, &out)
}

// Overview tells what templates, pools and cells use now, and what the host has.
func (c *Client) Overview(ctx context.Context) (out api.Overview, err error) {
	return out, c.do(ctx, "GET", "/v1/stats", nil, nil, &out)
}
