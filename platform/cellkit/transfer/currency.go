package transfer

// DefaultCurrency counts where none is given.
const DefaultCurrency = "CNY"

// Currencies lists what is taken. The database has the same list
// (cell.minor_digits) and refuses the others by itself.
func Currencies() []string { return []string{"CNY", "USD", "EUR", "JPY", "KWD"} }

// Digits gives how many digits a currency's amounts have behind the point; false
// for a currency that isn't taken. Amounts are whole numbers of the smallest unit.
func Digits(currency string) (int, bool) {
	switch currency {
	case "JPY":
		return 0, true
	case "CNY", "USD", "EUR":
		return 2, true
	case "KWD":
		return 3, true
	}
	return 0, false
}

// ValidCurrency says whether a currency is accepted.
func ValidCurrency(c string) bool {
	_, ok := Digits(c)
	return ok
}
