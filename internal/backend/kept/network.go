package kept

import (
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
)

// Networks opens gateways in a keeper: it joins what they go by with who
// decides.
type Networks struct{}

// Open implements keeper.Networks.
func (Networks) Open(id cell.ID, link cell.NetworkLink, file *os.File, g cell.Governance, emit func(kind string, fields any)) (keeper.Network, error) {
	file.Close()
	return nil, cell.Errorf(cell.Unsupported, "kept.Open", "leave out the network rules", "cannot open a gateway: this build has none")
}
