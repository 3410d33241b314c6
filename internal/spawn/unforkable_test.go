package spawn

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
)

func TestUnforkable(t *testing.T) {
	t.Parallel()
	b := &build{m: New(Config{Redactor: &receipt.Redactor{}}), p: &templatePlan{req: api.TemplateRequest{Name: "js", Warm: "node", From: "/src/my project", Setup: "let a = 'b'", Ready: "a\n", Allow: []string{"@npm", "example.org"},
		Env: []string{"MODE=a b", "TOKEN=ghp_" + strings.Repeat("a1B2", 9)}, Limits: api.Limits{Memory: "1G"}, Policy: "version: 1"}}}
	refused := cell.Errorf(cell.Unsupported, "x", "end them before, or "+cell.ForkSandbox, "cannot fork it")
	want := `end them before, or fork its whole sandbox, with --backend gvisor or microvm: pando template build js --backend gvisor --warm node --from '/src/my project' ` +
		`--setup 'let a = '\''b'\''' --ready @FILE --allow @npm --allow example.org --memory 1G --env 'MODE=a b' --env TOKEN --policy FILE`
	if err := b.unforkable(refused); cell.HintOf(err) != want || cell.KindOf(err) != cell.Unsupported || !strings.Contains(err.Error(), "cannot fork it") {
		t.Errorf("%v\nhint %s\nwant %s", err, cell.HintOf(err), want)
	}
	other := cell.Errorf(cell.Unsupported, "x", "choose --backend namespace", "cannot")
	if err := b.unforkable(other); err != other {
		t.Errorf("another refusal became %v", err)
	}
}
