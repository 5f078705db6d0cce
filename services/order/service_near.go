package order

import (
	"context"
	"encoding/json"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/catalog/catalogapi"
	"example.com/cellmart/services/user/userapi"
)

// ErrUnknownAddress refuses an address that the buyer doesn't have.
var ErrUnknownAddress = errs.New(errs.Unprocessable, "UNKNOWN_ADDRESS", "there is no such address").At("address_id")

// nearCatalog is the cell's own copy of the catalog.
type nearCatalog struct{ *catalogapi.Client }

func (c nearCatalog) skus(ctx context.Context, ids []id.ID) ([]SKU, error) {
	list, err := c.SKUs(ctx, ids)
	out := make([]SKU, len(list))
	for i, v := range list {
		out[i] = SKU(v)
	}
	return out, err
}

// nearUsers is the user service of the same cell.
type nearUsers struct{ *userapi.Client }

func (c nearUsers) address(ctx context.Context, user, address id.ID) (json.RawMessage, error) {
	a, err := c.Address(ctx, user, address)
	if errs.IsKind(err, errs.NotFound) {
		return nil, ErrUnknownAddress.Because(err)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(a)
}
