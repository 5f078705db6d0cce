package storefront

import "time"

// What the pages need of the API's answers (api/openapi.yaml); the rest is skipped.

type money struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

type category struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

type list[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next_cursor"`
}

type variant struct {
	ID       string `json:"id"`
	Title    string `json:"title"`
	Price    int64  `json:"price"`
	Currency string `json:"currency"`
}

type product struct {
	ID          string    `json:"id"`
	Title       string    `json:"title"`
	Description string    `json:"description"`
	Category    string    `json:"category"`
	Active      bool      `json:"active"`
	SKUs        []variant `json:"skus"`
}

// shelfStock says about how much is left of a product's SKUs.
type shelfStock struct {
	Items []struct {
		SKU   string `json:"sku"`
		Level string `json:"level"`
		Left  int64  `json:"left"`
	} `json:"items"`
}

type found struct {
	list[hit]
	Categories []struct {
		ID    string `json:"category"`
		Count int64  `json:"count"`
	} `json:"categories"`
	Total int64          `json:"total_approx"`
	Lag   map[string]lag `json:"lag"`
}

type hit struct {
	ID       string `json:"id"`
	Title    string `json:"title"`
	Category string `json:"category"`
	Price    int64  `json:"price"`
	Currency string `json:"currency"`
	Active   bool   `json:"active"`
}

type lag struct {
	MS    *int64 `json:"ms"`
	State string `json:"state"`
}

type session struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
	Refresh   string    `json:"refresh_token"`
}

type operation struct {
	ID     string `json:"id"`
	State  string `json:"state"`
	Reason string `json:"reason"`
}

type user struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Phone     string    `json:"phone"`
	ShopName  string    `json:"shop_name"`
	CreatedAt time.Time `json:"created_at"`
}

type address struct {
	ID        string `json:"id"`
	Recipient string `json:"recipient"`
	Phone     string `json:"phone"`
	Line      string `json:"line"`
	City      string `json:"city"`
	Postcode  string `json:"postcode"`
}

type cartItem struct {
	SKU       string `json:"sku"`
	Quantity  int64  `json:"quantity"`
	Available bool   `json:"available"`
	Product   string `json:"product_id"`
	Title     string `json:"title"`
	Price     *money `json:"price"`
}

type cart struct {
	Items []cartItem `json:"items"`
	Total *money     `json:"total"`
}

type balance struct {
	Currency  string `json:"currency"`
	Available int64  `json:"available"`
	Frozen    int64  `json:"frozen"`
}

type wallet struct {
	Balances []balance `json:"balances"`
}

type entry struct {
	From      string    `json:"from"`
	To        string    `json:"to"`
	Amount    int64     `json:"amount"`
	Currency  string    `json:"currency"`
	Ref       string    `json:"ref"`
	Step      string    `json:"step"`
	Memo      string    `json:"memo"`
	Available int64     `json:"available"`
	Frozen    int64     `json:"frozen"`
	CreatedAt time.Time `json:"created_at"`
}

type preview struct {
	ToUser    string `json:"to_user"`
	ToName    string `json:"to_name"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	Available int64  `json:"available"`
	LeftToday *int64 `json:"left_today"`
	Confirm   string `json:"confirm"`
}

type transfer struct {
	ID        string    `json:"id"`
	Direction string    `json:"direction"`
	Kind      string    `json:"kind"`
	FromUser  string    `json:"from_user"`
	ToUser    string    `json:"to_user"`
	Amount    int64     `json:"amount"`
	Currency  string    `json:"currency"`
	State     string    `json:"state"`
	Reason    string    `json:"reason"`
	Memo      string    `json:"memo"`
	CreatedAt time.Time `json:"created_at"`
	History   []struct {
		At       time.Time `json:"at"`
		Side     string    `json:"side"`
		State    string    `json:"state"`
		Attempts int64     `json:"attempts"`
	} `json:"history"`
}

// Open says that the transfer goes on by itself.
func (t transfer) Open() bool { return t.State == "FROZEN" || t.State == "CANCELLING" }

// CanCancel says that its payer may ask for the money back.
func (t transfer) CanCancel() bool {
	return t.State == "FROZEN" && t.Direction == "out" && t.Kind == "transfer"
}

type orderSummary struct {
	Number    string    `json:"number"`
	State     string    `json:"state"`
	Reason    string    `json:"reason"`
	Total     money     `json:"total"`
	CreatedAt time.Time `json:"created_at"`
	Lines     int64     `json:"lines_count"`
}

type order struct {
	Number    string    `json:"number"`
	State     string    `json:"state"`
	Reason    string    `json:"reason"`
	Payment   string    `json:"payment_status"`
	Total     money     `json:"total"`
	CreatedAt time.Time `json:"created_at"`
	Address   *address  `json:"address"`
	Lines     []struct {
		Product  string `json:"product_id"`
		Title    string `json:"title"`
		Price    money  `json:"price"`
		Quantity int64  `json:"quantity"`
		Amount   money  `json:"amount"`
	} `json:"lines"`
	Parts []struct {
		Seller        string `json:"seller_id"`
		State         string `json:"state"`
		Amount        money  `json:"amount"`
		Transfer      string `json:"transfer_id"`
		TransferState string `json:"transfer_state"`
	} `json:"parts"`
	Timeline []struct {
		At     time.Time `json:"at"`
		Event  string    `json:"event"`
		Detail string    `json:"detail"`
	} `json:"timeline"`
}

// Open says that the order goes on by itself.
func (o order) Open() bool { return o.State == "PENDING" || o.State == "RESERVED" }
