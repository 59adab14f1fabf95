// The style of a view that is loaded late. The policy allows no inline style, and a file of its own would cost a request: a
// sheet that a script makes is neither.

export function addStyle(text: string): void {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(text);
  document.adoptedStyleSheets.push(sheet);
}
