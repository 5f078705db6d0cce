package route

import (
	"fmt"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/routing"
)

// Resolve gives a slot's owner, standby and epoch. A slot that no cell has is
// NotFound: there is no default cell.
func Resolve(t *routing.Table, slot routing.Slot) (routing.Assignment, error) {
	if t == nil {
		return routing.Assignment{}, errs.ErrUnavailable.Because(fmt.Errorf("no route table yet"))
	}
	a, ok := t.Slot(slot)
	if !ok {
		return a, errs.ErrNotFound.Because(fmt.Errorf("slot %d is not in route table %d", slot, t.Version()))
	}
	return a, nil
}
