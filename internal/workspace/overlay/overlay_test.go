package overlay_test

import (
	"os"
	"testing"

	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/overlay"
	"github.com/pando-dev/pando/internal/workspace/workspacetest"
)

func TestMain(m *testing.M) { workspacetest.Main(m) }

func TestProvider(t *testing.T) {
	workspacetest.Suite(t, func(root string) workspace.Provider { return overlay.New(root, os.Geteuid() == 0) })
}
