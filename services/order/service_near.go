package order

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// ErrUnknownAddress refuses an address that the buyer doesn't have.
var ErrUnknownAddress = errs.New(errs.Unprocessable, "UNKNOWN_ADDRESS", "there is no such address").At("address_id")

// catalogClient asks the catalog of the same cell.
type catalogClient struct{ http *call.Client }

// skuList is the answer of the catalog's GET /internal/skus.
type skuList struct {
	Items []struct {
		SKU        id.ID        `json:"sku"`
		Product    id.ID        `json:"product_id"`
		Seller     id.ID        `json:"seller_id"`
		SellerSlot routing.Slot `json:"seller_slot"`
		Title      string       `json:"title"`
		Price      int64        `json:"price"`
		Currency   string       `json:"currency"`
		Active     bool         `json:"active"`
	} `json:"items"`
}

func (c catalogClient) skus(ctx context.Context, ids []id.ID) ([]SKU, error) {
	words := make([]string, len(ids))
	for i, v := range ids {
		words[i] = v.String()
	}
	var list skuList
	if err := c.http.JSON(ctx, "GET", "/internal/skus?ids="+strings.Join(words, ","), nil, &list); err != nil {
		return nil, err
	}
	out := make([]SKU, len(list.Items))
	for i, v := range list.Items {
		out[i] = SKU(v)
	}
	return out, nil
}

// userClient asks the user service of the same cell.
type userClient struct{ http *call.Client }

func (c userClient) address(ctx context.Context, user, address id.ID) (out json.RawMessage, err error) {
	err = c.http.JSON(ctx, "GET", "/internal/users/"+user.String()+"/addresses/"+address.String(), nil, &out)
	if errors.Is(err, errs.ErrNotFound) || errs.IsKind(err, errs.NotFound) {
		return nil, ErrUnknownAddress.Because(err)
	}
	return out, err
}
