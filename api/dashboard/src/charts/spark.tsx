// The last minutes of one reading as a line in a table row, on a scale that is the same in every row.

const WIDTH = 66;
const HEIGHT = 20;

export function Spark({ values, top }: { values: (number | null)[]; top: number }) {
  if (values.length < 2) return <svg class="spark" width={WIDTH} height={HEIGHT} aria-hidden="true" />;
  const step = WIDTH / (values.length - 1);
  let path = "";
  let pen = "M";
  values.forEach((value, position) => {
    if (value === null) {
      pen = "M";
      return;
    }
    const y = HEIGHT - 1 - (Math.min(value, top) / top) * (HEIGHT - 2);
    path += `${pen}${(position * step).toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  return (
    <svg class="spark" width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true">
      <path d={path} />
    </svg>
  );
}
